"""The settings of a client and of a bookie, with their units.

The dataclasses are frozen: make one with your own values. `quire.configuration` reads the same
values from the configuration file, the environment and options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from quire._runtime.limits import Limits, PositiveInt, PositiveSeconds, Share, check_fields
from quire._runtime.names.former_names import was_in_milliseconds
from quire.errors import UsageError

KIB = 1024
MIB = 1024 * 1024
FRAME_BYTES_LEAST = SEGMENT_BYTES_LEAST = 16 * KIB
"""The smallest size, in bytes, that may be configured for a frame and for a segment of the log."""
LEDGER_METADATA_VERSIONS = (2, 3)
"""The formats of ledger metadata that a client can be configured to write."""


class CheckedSettings:
    """The base of settings whose values are checked when they are constructed.

    Raises:
        UsageError: A value has the wrong type or is out of range.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self, UsageError)


@dataclass(frozen=True, slots=True)
class TlsClientConfig(CheckedSettings):
    """The TLS settings of a client. Files are in PEM, and are read again when they change."""

    ca: str | None = None
    """A PEM file with the certificate authorities that may sign the certificates of bookies. If it
    is not set, the client trusts the authorities of the operating system."""
    certificate: str | None = None
    """A PEM file with the client's certificate, followed by its chain. The client shows it to
    bookies that ask for one; without it, bookies that require a certificate refuse the client."""
    private_key: str | None = None
    """A PEM file with the private key of `certificate`. If it is not set, the key is read from the
    certificate's file."""
    key_password_file: str | None = None
    """A file with the password of the private key. If it is not set, the key must not be
    encrypted."""
    verify_host_name: bool = True
    """Whether the certificate of a bookie must name the host or address that the bookie registered.
    Set it to false only in a cluster whose certificates contain no names."""
    reload_check_s: float = 1.0
    """The least number of seconds between two checks for changed certificate files. The files are
    checked before a handshake; a smaller value picks up renewed certificates sooner."""


@dataclass(frozen=True, slots=True)
class TlsServerConfig(CheckedSettings):
    """The TLS settings of a bookie. Files are in PEM, and are read again when they change."""

    certificate: str
    """A PEM file with the bookie's certificate, followed by its chain. The certificate must name
    the host that the bookie advertises."""
    private_key: str | None = None
    """A PEM file with the private key of `certificate`. If it is not set, the key is read from the
    certificate's file."""
    key_password_file: str | None = None
    """A file with the password of the private key. If it is not set, the key must not be
    encrypted."""
    ca: str | None = None
    """A PEM file with the certificate authorities that may sign the certificates of clients."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    """Whether a client must show a certificate that `ca` signed. With `optional`, clients without a
    certificate are served too, but a certificate that is shown must be valid. Except in Python, the
    default is `required` if `ca` is set."""
    reload_check_s: float = 1.0
    """The least number of seconds between two checks for changed certificate files. The files are
    checked before a handshake; a smaller value picks up renewed certificates sooner."""
    handshake_timeout_s: PositiveSeconds = 10.0
    """Seconds that a client may take to complete the TLS handshake before it is disconnected. The
    time in which the handshake waits because of `max_handshakes` counts too."""
    max_handshakes: PositiveInt = 256
    """The largest number of TLS handshakes that run at once. Further handshakes wait, within
    `handshake_timeout_s`. A smaller value leaves more processor time for requests when many clients
    connect at the same time."""


@dataclass(frozen=True, slots=True)
class PlacementConfig(CheckedSettings):
    """The choice of bookies for what a client writes (docs/guides/cluster/placement.md)."""

    policy: str = "rack-aware"
    """The placement policy: rack-aware, region-aware, zone-aware, local-first, any, or the name of
    an entry point in the group `quire.placement`. If no locations are known, the policies choose
    any bookies, on different hosts if possible. A policy that enforces a minimum then fails
    instead."""
    locations: str | Mapping[str, str] = ""
    """The source of the bookies' locations: `table:FILE`, `script:FILE`, `metadata`,
    `metadata:/NODE`, or a mapping of bookie ids or hosts to locations. An empty value means that no
    location is known."""
    own_location: str = ""
    """The location of this client, for policies that prefer near bookies. If it is empty, the
    client looks up the location of `own_host`."""
    own_host: str = ""
    """The host of this client, as a bookie on that host registers it. The policy local-first needs
    it."""
    min_racks: int = 2
    """rack-aware and region-aware: the number of racks that each write quorum should span, but at
    most the size of the write quorum. A larger value survives the loss of more racks, and needs
    bookies in more racks."""
    enforce_racks: bool = False
    """rack-aware: whether to fail if a write quorum cannot span `min_racks` racks. If it is true,
    bookies whose rack is not known are not used. If it is false, the policy uses as many racks as
    it can."""
    regions: tuple[str, ...] = ()
    """region-aware: the only regions to write to. Every ack quorum then spans `min_regions` of
    them. If it is empty, all regions are used and none is required."""
    min_regions: int = 2
    """region-aware: the number of regions that each ack quorum must span if `regions` is set.
    Quorum sizes that cannot span that many are refused."""
    min_zones: int = 2
    """zone-aware: the least number of zones that each write quorum must span. A larger value
    survives the loss of more zones."""
    desired_zones: int = 3
    """zone-aware: the number of zones that each write quorum spans if there are enough. With fewer
    zones, down to `min_zones`, the policy uses those that exist."""
    strict_zones: bool = True
    """zone-aware: whether to fail if a write quorum cannot span `min_zones` zones. Then the write
    quorum must also be larger than `min_zones`, and the ensemble a multiple of it. If it is false,
    the policy uses as many zones as it can."""
    spread_acks: bool = False
    """Whether an append also waits until bookies in `min_racks` racks have the entry (rack-aware
    and region-aware), or in `min_zones` zones (zone-aware). If its write quorum spans fewer, it
    waits for all of them. This costs latency, and the writer fails when too few racks are left."""
    local_reads: bool | None = None
    """Whether readers ask near bookies first. If it is not set, the policy decides: region-aware
    and local-first do, the others do not."""
    disk_weighted: bool = False
    """Whether to choose among equally suitable bookies in proportion to their free disk space. If
    it is false, the choice is uniformly random."""
    weight_multiple_max: float = 3.0
    """The largest weight of one bookie, as a multiple of the median free space. A larger value
    sends more of the new ledgers to the emptiest bookies."""
    weight_refresh_s: PositiveSeconds = 60.0
    """Seconds between two rounds in which the client asks bookies for their free space. A larger
    value causes fewer requests and works with older figures."""
    table_check_s: PositiveSeconds = 5.0
    """Seconds between two checks whether the table file has changed."""
    script_names_max: PositiveInt = 100
    """The largest number of names that one call of the location script receives."""
    script_timeout_s: PositiveSeconds = 10.0
    """Seconds that one call of the location script may take. After that the call counts as failed,
    and the locations stay as they were."""
    script_refresh_s: PositiveSeconds = 300.0
    """Seconds after which the script is asked again about all bookies. A smaller value notices
    moved bookies sooner and starts the script more often."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings for placement policies of your own. The built-in policies ignore them."""


@was_in_milliseconds("explicit_lac_interval", "long_poll")
@dataclass(frozen=True, slots=True)
class ClientConfig(CheckedSettings):
    """The settings of a client."""

    connect_timeout_s: PositiveSeconds = 5.0
    """Seconds to wait for a connection to a bookie, including its TLS handshake. A bookie that
    takes longer counts as failed."""
    silent_link_s: float = 2.5
    """Seconds without any data after a request before the client probes the connection. If the
    probe fails and a new connection answers, the new one replaces it. A smaller value finds dead
    connections sooner. At most half of `read_timeout_s` and of `add_timeout_s` is used. 0: never,
    and `idle_link_s` has no effect either."""
    idle_link_s: float = 10.0
    """Seconds without any data after which a connection is probed before a read or a new writer
    uses it. Writers that use it already send without a probe, so that `silent_link_s` applies to
    them. A smaller value notices sooner that a firewall has dropped an idle connection. 0:
    never."""
    probe_timeout_s: PositiveSeconds = 1.0
    """Seconds that the probe of a connection may take. At most a fifth of `read_timeout_s` and of
    `add_timeout_s` is used."""
    dead_link_s: float = 30.0
    """Seconds until the operating system ends a connection to a bookie whose machine no longer
    acknowledges anything (TCP keepalive and user time-out). 0: the default of the system, often
    hours."""
    add_timeout_s: PositiveSeconds = 5.0
    """Seconds that a bookie may leave an add unanswered before it is replaced. A smaller value
    replaces a stuck bookie sooner, and may replace one that is merely slow."""
    read_timeout_s: PositiveSeconds = 5.0
    """Seconds that a bookie may leave a read unanswered, or up to six times as long if it sends
    other data meanwhile. After that the client does not wait for this answer any more, and it is
    unknown whether the bookie has the entry."""
    speculative_read_s: float = 1.0
    """Seconds to wait for the answer to a read before the client also asks the next replica. The
    first good answer is used. A smaller value hides slow bookies better and sends more duplicate
    reads."""
    recovery_timeout_s: PositiveSeconds = 60.0
    """Seconds that opening with recovery may take before it fails. No data is lost then: open the
    ledger again."""
    max_unacked_bytes: PositiveInt = 64 * MIB
    """The payload bytes of one writer that the slowest bookie of its ensemble has not acknowledged.
    When this bound is reached, appends wait; after `add_timeout_s` the slow bookie is replaced. A
    larger value tolerates longer stalls of one bookie and takes more memory."""
    max_unforced_bytes: PositiveInt = 64 * MIB
    """The payload bytes of one deferred-sync writer that no `force` has made durable. The writer
    keeps them in case a bookie has to be replaced. When this bound is reached, the writer forces by
    itself, and appends wait meanwhile."""
    max_held_bytes: int = 64 * MIB
    """The bytes of entries that one writer with caller-chosen ids keeps because an earlier id is
    missing. Beyond this bound such entries are refused with `UsageError`."""
    explicit_lac_interval_s: float = 0.0
    """Seconds within which a writer that pauses tells the bookies its last acknowledged entry in a
    message of its own. A busy writer needs no such message, because each entry carries the id of
    the last one acknowledged before it. A smaller value shows the last entries to readers sooner
    and sends more messages. 0: never."""
    long_poll_s: PositiveSeconds = 2.0
    """Seconds that a tailing reader waits for one bookie before it asks the next. The bookie then
    has `speculative_read_s` to answer. Keep the value below `silent_link_s`: otherwise the client
    probes the connection during each wait."""
    max_turn_bytes: PositiveInt = 512 * KIB
    """The payload bytes after which appends are sent at once, within an event-loop iteration. Until
    this size is reached, all appends of one iteration are sent together after it. A larger value
    forms larger batches."""
    read_window_bytes: PositiveInt = 1 * MIB
    """The bytes that one read window asks for: a batch read, or single reads of each bookie of the
    ensemble. A larger value needs fewer requests and more memory."""
    read_windows: PositiveInt = 4
    """The number of windows that one `read` keeps in flight. A larger value hides more network
    latency and takes more memory."""
    single_reads_in_flight: PositiveInt = 256
    """The largest number of single reads in one window. Single reads are used for striped ledgers
    and for bookies without batch reads."""
    add_quorum_timeout_s: float = 0.0
    """Seconds that an append may wait for its ack quorum before its writer fails with
    `AddQuorumTimeoutError`, no matter how many bookies were replaced meanwhile. 0: never."""
    lost_quorum_wait_s: float = 30.0
    """Seconds that a writer keeps trying its bookies when it can reach no ack quorum and finds no
    replacement. Then it fails with `NotEnoughBookiesError`. If `add_quorum_timeout_s` is set, that
    value is used instead. A writer that never reached any bookie fails at once. 0: every writer
    fails at once, like Apache's client."""
    watch_written_ledgers: bool = False
    """Whether a writer watches its ledger's metadata, and stops when another client recovers,
    closes or deletes the ledger, or creates another one with its id. Without the watch it learns
    this from bookies, or, after a deletion, at its next change of the metadata. Use it if bookies
    may come back empty under their former ids, if ledger ids are reused, or if ledgers may be
    deleted by their ids while streams are written to them."""
    max_ensemble_changes: int = 1_000
    """The number of ensemble changes that one writer may make. If it needs one more, it fails. This
    bounds the growth of the ledger's metadata if bookies fail again and again."""
    avoid_failed_bookie_s: float = 30.0
    """Seconds for which a bookie that failed is not chosen for new ensembles, unless too few others
    are left. A smaller value returns to the bookie sooner."""
    slow_bookie_s: float = 60.0
    """Seconds for which readers ask a bookie after the other replicas, because a speculative read
    overtook its answer."""
    absence_recheck_s: float = 2.0
    """Seconds until a bookie is asked again after it denied an entry of a closed ledger that
    another replica has, because it may merely lag. If the ack quorum is smaller than the write
    quorum, the bookie is asked three times, with each pause twice as long as the one before;
    otherwise it is asked once. A replica that denies the entry every time counts as missing. Reads
    do not wait for this. 0: the first denial counts."""
    quarantine_errors: int = 0
    """The number of errors within `quarantine_window_s` that put a bookie into quarantine. Such a
    bookie is chosen and read from only if too few others are left. 0: errors never do, as in
    Apache's client, and only `avoid_failed_bookie_s` applies. Apache uses 100 if its quarantine is
    switched on."""
    quarantine_window_s: float = 60.0
    """Seconds over which the errors of a bookie are counted for `quarantine_errors`."""
    quarantine_s: float = 1_800.0
    """Seconds that a bookie stays in quarantine."""
    quarantine_liars: bool = True
    """Whether a bookie that gave an answer that no correct bookie can give (see `Client.suspects`)
    is put into quarantine."""
    assume_liars: int = 0
    """The number of Byzantine bookies that each ensemble may contain without the loss of an
    acknowledged entry. With a larger value, opening a ledger needs answers from more bookies, and
    fails if it does not get them. See docs/explanation/byzantine-bookies.md."""
    bookies_wait_s: float = 2.0
    """Seconds that creating a ledger waits for enough bookies to register. Then it fails with
    `NotEnoughBookiesError`. A writer that has lost its ack quorum waits as long for a replacement,
    before it tries its bookies again for `lost_quorum_wait_s`."""
    ledger_metadata_version: Annotated[int, Limits(choices=LEDGER_METADATA_VERSIONS)] = 3
    """The format in which the metadata of new ledgers is stored. Use 2 only if programs that do not
    know format 3 read the ledgers. A ledger keeps its format for life."""
    placement: PlacementConfig = PlacementConfig()
    """The placement policy, which chooses the bookies of new ensembles and the replacements of
    failed bookies."""
    tls: TlsClientConfig | None = None
    """How connections to bookies are secured. If this table is present, the client uses TLS for
    every connection, and refuses bookies that do not offer it."""

    @property
    def lost_quorum_limit_s(self) -> float:
        """Seconds for which a writer that lost its ack quorum keeps trying its bookies."""
        return self.add_quorum_timeout_s or self.lost_quorum_wait_s


@was_in_milliseconds("max_long_poll", "seal_idle", "session_timeout")
@dataclass(frozen=True, slots=True)
class BookieConfig(CheckedSettings):
    """The settings of a bookie."""

    max_frame_bytes: Annotated[int, Limits(FRAME_BYTES_LEAST, 2**30)] = 5 * MIB
    """The largest size of one request, which bounds the size of an entry. A client that sends a
    larger one is disconnected."""
    max_batch_read_bytes: PositiveInt = 5 * MIB
    """The largest size of the answer to one batch read, even if the client asks for more."""
    max_queued_bytes: PositiveInt = 64 * MIB
    """The bytes of entries that were received and are not yet synced. When this bound is reached,
    the bookie stops reading from its connections, so that clients wait. Each of several data
    directories has an equal share of the bound. A larger value absorbs longer stalls of the disk
    and takes more memory."""
    max_unsent_bytes: PositiveInt = 16 * MIB
    """The bytes of answers that one connection may hold: those being read from the disk, and those
    that its client has not received. Further reads of the connection wait. One answer is always
    allowed, whatever its size."""
    max_answer_bytes: PositiveInt = 256 * MIB
    """The bytes of answers that all connections together may hold. Further reads wait, and the
    connections take turns. A larger value serves more slow readers at once and takes more
    memory."""
    unsent_timeout_s: float = 60.0
    """Seconds after which the bookie closes a connection whose client accepts almost no answers. If
    other reads wait because of `max_answer_bytes`, the limit is 2 s. 0: no limit except those 2
    s."""
    max_partial_bytes: PositiveInt = 64 * MIB
    """The bytes of incomplete requests that all connections together may hold. Beyond it only the
    oldest of these requests are read, and connections whose request is older than a second are
    closed. Requests smaller than 16 KiB are always read."""
    partial_frame_timeout_s: float = 60.0
    """Seconds after which a request that has not arrived completely ends its connection. 0:
    no limit."""
    dead_client_s: float = 30.0
    """Seconds until the operating system ends a connection to a client whose machine no longer
    acknowledges anything (TCP keepalive and user time-out). 0: the default of the system, often
    hours."""
    max_connections: PositiveInt = 4_096
    """The number of connections that a bookie keeps at once. To admit another one it closes a
    connection that never completed a request, or else one that has been silent for
    `idle_timeout_s`. If there is none, it refuses the new connection. If the system allows the
    process too few open files, the number is smaller (event `connections_limited`)."""
    first_request_timeout_s: float = 60.0
    """Seconds until a connection that has not completed a request is closed. 0: never."""
    idle_timeout_s: float = 120.0
    """Seconds of silence after which a connection may be closed to admit another, once there are
    `max_connections`. 0: never."""
    max_long_polls: int = 65_536
    """The number of tailing reads that may wait at once. The bookie refuses further reads with the
    error "too many requests"."""
    max_long_poll_s: float = 60.0
    """The longest time, in seconds, that a tailing read may wait. A read that asks for more is
    answered after this time."""
    segment_bytes: Annotated[int, Limits(SEGMENT_BYTES_LEAST, or_zero=True)] = 0
    """The size of one segment file of the log, which is preallocated. Larger segments mean fewer
    files; smaller ones free space in smaller steps. An entry that does not fit into a segment is
    refused with the event `entry_refused`; 8 MiB are enough for every entry of up to 5 MiB. 0: a
    1024th of the disk, but at least 64 MiB and at most 256 MiB."""
    log_cache_bytes: int = 128 * MIB
    """The newest bytes of the log that the bookie keeps in the system's page cache for tailing
    readers. Older entries are read from the device. Each of several data directories has an equal
    share. A larger value serves readers that lag further behind from memory. 0: no limit except the
    machine's memory."""
    catch_up_bytes_per_s: int = 64 * MIB
    """The rate at which readers that lag behind may read from each data directory while it also
    stores entries. If twice the rate of the stored entries is more, that rate applies. A larger
    value lets readers catch up sooner and slows down adds. 0: no limit."""
    min_free_bytes: int = 256 * MIB
    """The low-water mark, in bytes: a data directory with less free space accepts no more entries
    of writers. If no other directory accepts any, the bookie becomes read-only."""
    writable_free_bytes: int = 0
    """The high-water mark, in bytes: a data directory that had too little free space accepts
    entries again only once this much is free. It must be at least `min_free_bytes`. 0:
    `min_free_bytes` and a quarter more."""
    read_only_dwell_s: float = 30.0
    """The shortest time, in seconds, for which a data directory that had too little free space
    accepts no entries. It limits how often a bookie changes its state when its free space is near a
    mark."""
    seal_idle_s: PositiveSeconds = 0.2
    """Seconds without adds after which the bookie writes an empty record to the log, which proves
    that the entries before it were synced. A smaller value writes more of these records when adds
    arrive slowly."""
    gc_enabled: bool = True
    """Whether this bookie deletes ledgers and copies that the metadata store does not name. If it
    is false, the bookie never deletes any, even if the disk is full. `quire cluster gc off` does
    the same for the whole cluster."""
    metadata_mark_interval_s: PositiveSeconds = 10.0
    """Seconds between two increments of a counter that the bookie keeps in the metadata store. If
    the store goes back to an older state, the counter is lower than the bookie remembers, and the
    bookie deletes nothing."""
    gc_interval_s: PositiveSeconds = 600.0
    """Seconds between two searches for ledgers that were deleted in the metadata store. A smaller
    value frees space sooner and lists the ledgers of the cluster more often."""
    gc_full_interval_s: PositiveSeconds = 30.0
    """Seconds between two searches for deleted ledgers while the disk is full. If `gc_interval_s`
    is smaller, it applies."""
    compact_minor_ratio: Share = 0.2
    """The share of live bytes below which a minor compaction rewrites a segment. A larger value
    frees more space and copies more bytes. 0: no minor compactions."""
    compact_minor_interval_s: float = 3_600.0
    """Seconds from the end of one round of minor compactions to the beginning of the next. A round
    rewrites one segment after the other, until none is below the ratio."""
    compact_major_ratio: Share = 0.8
    """The share of live bytes below which a major compaction rewrites a segment. It also applies
    whenever the disk is full. A larger value frees more space and copies more bytes. 0: no major
    compactions."""
    compact_major_interval_s: float = 86_400.0
    """Seconds from the end of one round of major compactions to the beginning of the next."""
    compact_bytes_per_s: int = 16 * MIB
    """The rate at which compaction writes to each data directory. A larger value frees space sooner
    and slows down adds. 0: no limit. On a full disk there is no limit in any case."""
    compact_reserve_bytes: int = 256 * MIB
    """The bytes that stay preallocated, so that a compaction can run on a full disk. At most the
    size of one segment is used."""
    scrub_interval_s: float = 604_800.0
    """Seconds between the beginnings of two checks of everything that is stored. A check runs in
    the background. 0: only segments in which damage was found are checked."""
    scrub_bytes_per_s: int = 4 * MIB
    """The rate at which the check reads from each data directory. A larger value finds damage
    sooner and takes more of the disk's throughput. 0: no limit."""
    index_cache_interval_s: float = 300.0
    """The least number of seconds between two writes of the index cache, which shortens the start
    after a crash. A smaller value shortens that start further and writes more."""
    index_cache_segments: PositiveInt = 16
    """The number of new segments after which the index cache is written again. If a segment that
    the cache covers has changed, the cache is written without waiting for that number."""
    damage_report_interval_s: float = 10.0
    """Seconds between two reports of damaged entries. A report marks their ledgers as
    under-replicated, so that autorecovery repairs them. 0: never."""
    log_position_interval_s: float = 10.0
    """Seconds between two reports to the metadata store of how far the log has got, while it grows.
    If a data directory is restored from an older copy, the loss of entries that were written after
    the last report goes unnoticed. A new segment is always reported within a second. 0: only new
    segments, starts and clean stops are reported."""
    gc_over_replicated_interval_s: float = 3_600.0
    """Seconds between two searches for copies of closed ledgers whose metadata does not name this
    bookie any more. A search reads the metadata of every ledger that the bookie has. The second
    search that finds such a copy drops it. 0: never."""
    check_space_s: PositiveSeconds = 5.0
    """Seconds between two checks of the free space. A smaller value reacts sooner when the disk
    fills up."""
    stop_timeout_s: PositiveSeconds = 10.0
    """Seconds that a requested stop may take. After that the process ends with status 1, and the
    next start checks the segments that are not sealed."""
    session_timeout_s: Annotated[float, Limits(0.1, 3_600)] = 10.0
    """The timeout of the session with the metadata store, in seconds. A bookie that died counts as
    registered for that long; with SQLite, the end of its process is noticed at once. A smaller
    value detects the death sooner, and ends the session at shorter interruptions of the network."""
    batch_scheduling: bool = True
    """Whether the bookie's threads run under Linux's `SCHED_BATCH`. A thread that is woken then
    lets the thread that woke it finish first, which saves context switches. The bookie does so only
    while nothing else keeps the processors busy."""
    tls: TlsServerConfig | None = None
    """How connections are secured. If this table is present, the bookie offers TLS to clients that
    ask for it; `tls_required` demands it."""
    tls_required: bool = False
    """Whether the bookie refuses requests that are not encrypted with TLS."""
    authorized_roles: tuple[str, ...] = ()
    """The roles that are served. If the list is not empty, the bookie serves only clients whose
    certificate has one of these as its first role."""
