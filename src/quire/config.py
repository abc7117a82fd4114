"""The limits of a client and of a bookie, each with its unit.

The values are frozen: pass a configuration of your own to change them. Every other package imports
this module. `quire.configuration` reads these values from the configuration file, the environment
and command options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from quire._runtime.former_names import was_in_milliseconds
from quire._runtime.limits import Limits, PositiveInt, PositiveSeconds, Share, check_fields
from quire.errors import UsageError

KIB = 1024
MIB = 1024 * 1024
FRAME_BYTES_LEAST = SEGMENT_BYTES_LEAST = 16 * KIB
"""The smallest frame, and the smallest segment, in bytes: four blocks of the log."""
LEDGER_METADATA_VERSIONS = (2, 3)


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
    """How a client secures its connections to bookies.

    All files are in PEM format. They are read again when they change.
    """

    ca: str | None = None
    """A file with the authorities that may sign the certificates of bookies. If it is not set, the
    authorities of the operating system are used."""
    certificate: str | None = None
    """A file with the client's certificate, followed by its chain. The client shows it to bookies
    that ask for it."""
    private_key: str | None = None
    """A file with the private key of the certificate. If it is not set, the key is in the file of
    the certificate."""
    key_password_file: str | None = None
    """A file with the password of an encrypted private key. If it is not set, the key is not
    encrypted."""
    verify_host_name: bool = True
    """Whether the certificate of a bookie must name the host or address that the bookie registered.
    Switch it off only for clusters whose certificates have no names."""
    reload_check_s: float = 1.0
    """The shortest time, in seconds, between two checks whether the files have changed. A check
    precedes a handshake."""


@dataclass(frozen=True, slots=True)
class TlsServerConfig(CheckedSettings):
    """How a bookie secures the connections of clients that ask for TLS.

    All files are in PEM format. They are read again when they change.
    """

    certificate: str
    """A file with the bookie's certificate, followed by its chain. Its names must include the host
    that the bookie advertises."""
    private_key: str | None = None
    """A file with the private key of the certificate. If it is not set, the key is in the file of
    the certificate."""
    key_password_file: str | None = None
    """A file with the password of an encrypted private key. If it is not set, the key is not
    encrypted."""
    ca: str | None = None
    """A file with the authorities that may sign the certificates of clients."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    """Whether clients must show a certificate that `ca` signed. With `optional`, the bookie also
    serves clients that show none."""
    reload_check_s: float = 1.0
    """The shortest time, in seconds, between two checks whether the files have changed. A check
    precedes a handshake."""
    handshake_timeout_s: PositiveSeconds = 10.0
    """Seconds that a client may take to complete the TLS handshake before it is disconnected."""
    max_handshakes: PositiveInt = 256
    """The number of TLS handshakes that run at once. Further clients wait, and their wait counts
    towards the same time-out."""


@dataclass(frozen=True, slots=True)
class PlacementConfig(CheckedSettings):
    """The bookies on which a client places its entries (see docs/guides/placement.md)."""

    policy: str = "rack-aware"
    """The placement policy: rack-aware, region-aware, zone-aware, local-first, any, or the name of
    an entry point in the group `quire.placement`. If no locations are known, every policy that
    enforces nothing chooses any bookies, on different hosts if possible."""
    locations: str | Mapping[str, str] = ""
    """The source of the bookies' locations: `table:FILE`, `script:FILE`, `metadata` or
    `metadata:/NODE`; or a mapping from bookie ids or hosts to locations. If it is empty, no
    locations are known."""
    own_location: str = ""
    """The location of this client, for policies that prefer near bookies. If it is empty, the
    location is not known."""
    own_host: str = ""
    """The host of this client, as a bookie on the same host registers it. The policy local-first
    needs it."""
    min_racks: int = 2
    """The number of racks over which rack-aware placement spreads every write quorum, at most one
    for each of its members."""
    enforce_racks: bool = False
    """Whether rack-aware placement fails rather than use fewer racks. Bookies whose rack is not
    known are then not used."""
    regions: tuple[str, ...] = ()
    """The only regions to which region-aware placement writes. Every ack quorum then spans
    `min_regions` of them. If it is empty, all regions are used."""
    min_regions: int = 2
    """The number of regions that every ack quorum spans with region-aware placement. It is enforced
    only if `regions` is set."""
    min_zones: int = 2
    """The number of zones that every write quorum spans with zone-aware placement."""
    desired_zones: int = 3
    """The number of zones that zone-aware placement uses if there are enough."""
    strict_zones: bool = True
    """Whether zone-aware placement fails rather than use fewer than `min_zones`."""
    spread_acks: bool = False
    """Whether an append also waits until bookies in `min_racks` racks have the entry (zone-aware:
    in `min_zones` zones), or in all racks of its write quorum if those are fewer. An acknowledged
    entry then survives the loss of a rack, but appends wait for the slower rack."""
    local_reads: bool | None = None
    """Whether reads ask near bookies first. If it is not set, the policy decides: region-aware and
    local-first do so."""
    disk_weighted: bool = False
    """Whether equally suitable bookies are chosen in proportion to their free disk space."""
    weight_multiple_max: float = 3.0
    """The largest weight of a bookie, as a multiple of the median weight. A smaller value keeps a
    bookie with much free space from receiving most ledgers."""
    weight_refresh_s: PositiveSeconds = 60.0
    """Seconds between two rounds of asking bookies for their free space."""
    table_check_s: PositiveSeconds = 5.0
    """Seconds between two checks whether the file of locations has changed."""
    script_names_max: PositiveInt = 100
    """The largest number of names that one call of the script receives."""
    script_timeout_s: PositiveSeconds = 10.0
    """Seconds that one call of the script may take."""
    script_refresh_s: PositiveSeconds = 300.0
    """Seconds until the script is asked again about all bookies."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options for a placement policy of your own."""


@was_in_milliseconds("explicit_lac_interval", "long_poll")
@dataclass(frozen=True, slots=True)
class ClientConfig(CheckedSettings):
    """The limits of a client. Pass one to `quire.connect`."""

    connect_timeout_s: PositiveSeconds = 5.0
    """Seconds that a connection to a bookie may take to open, including its TLS handshake."""
    silent_link_s: float = 2.5
    """Seconds without any data after a request until the connection to a bookie is probed. If it
    does not answer and a new connection does, the new one replaces it. At most half of
    `read_timeout_s` and of `add_timeout_s` is used. 0: never."""
    idle_link_s: float = 10.0
    """Seconds without any data until a connection to a bookie is probed before it is used again. 0:
    never."""
    probe_timeout_s: PositiveSeconds = 1.0
    """Seconds that a probe of a connection may take. At most a fifth of `read_timeout_s` and of
    `add_timeout_s` is used."""
    dead_link_s: float = 30.0
    """Seconds until the operating system ends a connection to a bookie whose machine no longer
    acknowledges anything (TCP keepalive and user time-out). 0: the default of the system, often
    hours."""
    add_timeout_s: PositiveSeconds = 5.0
    """Seconds until a writer replaces a bookie that has not answered an add. A smaller value
    shortens the pause after a bookie fails, but it also replaces bookies that are only slow."""
    read_timeout_s: PositiveSeconds = 5.0
    """Seconds that a bookie may take to answer a read while it sends nothing else. After that its
    answer counts as unknown."""
    speculative_read_s: float = 1.0
    """Seconds until a read that has no answer is also sent to the next replica. The first good
    answer is used. A smaller value avoids slow bookies sooner, but sends more reads."""
    recovery_timeout_s: PositiveSeconds = 60.0
    """Seconds after which opening a ledger with recovery gives up. Nothing is lost: open the ledger
    again."""
    max_unacked_bytes: PositiveInt = 64 * MIB
    """The payload bytes of one writer that the slowest bookie of its ensemble may leave
    unacknowledged. Beyond it appends wait, and after `add_timeout_s` the bookie is replaced. A
    larger value tolerates longer pauses of one bookie, but takes more memory."""
    max_unforced_bytes: PositiveInt = 64 * MIB
    """The payload bytes of one deferred-sync writer that no `force` has made durable yet. The
    client keeps them in memory in case a bookie has to be replaced. At this limit the writer
    forces, and appends wait meanwhile."""
    max_held_bytes: int = 64 * MIB
    """The bytes that a writer with caller-chosen ids holds while they wait for a missing id. Beyond
    it such entries are refused."""
    explicit_lac_interval_s: float = 0.0
    """Seconds within which a writer tells the bookies its last acknowledged entry in a message of
    its own, if no later entry carries that information. Readers then see the last entry of a writer
    that pauses. 0: never."""
    long_poll_s: PositiveSeconds = 2.0
    """Seconds that a tailing reader waits for one bookie before it asks the next one. Keep it well
    below `read_timeout_s`, which is the time that the bookie has to answer afterwards."""
    max_turn_bytes: PositiveInt = 512 * KIB
    """Appends of one event-loop iteration are sent together at its end, or as soon as they reach
    this many bytes."""
    read_window_bytes: PositiveInt = 1 * MIB
    """The bytes that one window of a read asks for: in one batch read, or in single reads from each
    bookie of the ensemble. A larger value makes sequential reads faster, but takes more memory."""
    read_windows: PositiveInt = 4
    """The number of windows that one `read` keeps in flight."""
    single_reads_in_flight: PositiveInt = 256
    """The largest number of single reads in one window. Single reads are used for striped ledgers,
    and for bookies without batch reads."""
    add_quorum_timeout_s: float = 0.0
    """Seconds after which an append without an ack quorum ends its writer, however often members of
    the ensemble were replaced meanwhile. 0: never."""
    lost_quorum_wait_s: float = 30.0
    """Seconds that a writer keeps trying its bookies when too many of an ensemble cannot be reached
    for an ack quorum and no other bookie can replace them. After that the writer fails. If
    `add_quorum_timeout_s` is set, it is used instead. 0: the writer fails at once, like Apache's
    client."""
    watch_written_ledgers: bool = False
    """Whether a writer watches its ledger's metadata, and stops when another client recovers,
    closes or deletes the ledger, or creates another one with its id. Without the watch it learns
    this from bookies, or at its next change of the metadata. Use it if bookies may come back empty
    under their former ids, or if ledger ids are reused."""
    max_ensemble_changes: int = 1_000
    """The number of ensemble changes of one writer, after which its appends fail."""
    avoid_failed_bookie_s: float = 30.0
    """Seconds for which a bookie that failed is avoided. During this time it is chosen for new
    ensembles only if no other bookie is left."""
    slow_bookie_s: float = 60.0
    """Seconds for which a slow bookie is asked after the others. A bookie is slow if a speculative
    read that was sent later was answered earlier."""
    absence_recheck_s: float = 2.0
    """Seconds until a bookie is asked again after it denied an entry of a closed ledger that
    another replica has. It may merely lag. If the ack quorum is smaller than the write quorum, it
    is asked three times, and each pause is twice the one before, until its replica counts as
    missing. Readers do not wait for that. 0: the first denial counts."""
    quarantine_errors: int = 0
    """The number of errors of a bookie within `quarantine_window_s` that puts it into quarantine. A
    bookie in quarantine is chosen and read from only if no other one is left. 0: errors never cause
    quarantine, and `avoid_failed_bookie_s` applies alone. Apache's client has this off by default
    as well, and uses 100 when it is on."""
    quarantine_window_s: float = 60.0
    """The length, in seconds, of the window in which the errors of a bookie are counted."""
    quarantine_s: float = 1_800.0
    """Seconds that a bookie stays in quarantine."""
    quarantine_liars: bool = True
    """Whether a bookie is also put into quarantine when it gives an answer that cannot be right
    (`Client.suspects`)."""
    assume_liars: int = 0
    """The number of Byzantine bookies that any ensemble may have without losing an acknowledged
    entry. Opening a ledger then needs more answers, and fails without them. See
    docs/explanation/replication.md."""
    bookies_wait_s: float = 2.0
    """Seconds that `create_ledger` and an ensemble change wait for enough bookies to register."""
    ledger_metadata_version: Annotated[int, Limits(choices=LEDGER_METADATA_VERSIONS)] = 3
    """The format of the metadata of new ledgers: 3, or 2 if old programs that do not know format 3
    must read them. A ledger never changes its format."""
    placement: PlacementConfig = PlacementConfig()
    """The bookies that are chosen for new ensembles and as replacements."""
    tls: TlsClientConfig | None = None
    """If this table is given, every connection to a bookie is secured before its first use, or it
    fails."""

    @property
    def lost_quorum_limit_s(self) -> float:
        """Seconds that a writer without an ack quorum tries the members of its ensemble again."""
        return self.add_quorum_timeout_s or self.lost_quorum_wait_s


@was_in_milliseconds("max_long_poll", "seal_idle", "session_timeout")
@dataclass(frozen=True, slots=True)
class BookieConfig(CheckedSettings):
    """The limits of a bookie."""

    max_frame_bytes: Annotated[int, Limits(FRAME_BYTES_LEAST, 2**30)] = 5 * MIB
    """The largest size, in bytes, of one request, and so of one entry. A client that sends a larger
    one is disconnected."""
    max_batch_read_bytes: PositiveInt = 5 * MIB
    """The largest size, in bytes, of the answer to one batch read, whatever the client asks for."""
    max_queued_bytes: PositiveInt = 64 * MIB
    """The bytes of received entries that are not synced yet. Beyond it the bookie stops reading
    from its sockets."""
    max_unsent_bytes: PositiveInt = 16 * MIB
    """The bytes of answers that one connection may have: those that are being read, and those that
    its client has not taken. Further reads of the connection wait. One answer is always allowed,
    whatever its size."""
    max_answer_bytes: PositiveInt = 256 * MIB
    """The bytes of answers that all connections together may have. Further reads wait, and the
    connections take turns."""
    unsent_timeout_s: float = 60.0
    """Seconds until a connection is closed whose client takes none of its answers. While reads wait
    because of `max_answer_bytes`, it is closed after 2 s. 0: only then."""
    max_partial_bytes: PositiveInt = 64 * MIB
    """The bytes of incomplete requests that all connections together may have. Beyond it only the
    oldest of these requests are read, and connections whose request is older than a second are
    closed. Requests smaller than 16 KiB are always read."""
    partial_frame_timeout_s: float = 60.0
    """Seconds within which a request must arrive completely, or its connection is closed. 0:
    never."""
    dead_client_s: float = 30.0
    """Seconds until the operating system ends a connection to a client whose machine no longer
    acknowledges anything (TCP keepalive and user time-out). 0: the default of the system, often
    hours."""
    max_connections: PositiveInt = 4_096
    """The number of connections that a bookie keeps at once. To admit another one it closes a
    connection that never completed a request, or else one that has been silent for
    `idle_timeout_s`. If there is none, it refuses the new connection."""
    first_request_timeout_s: float = 60.0
    """Seconds until a connection is closed that has not completed a request. 0: never."""
    idle_timeout_s: float = 120.0
    """Seconds of silence after which a connection may be closed to admit another, once there are
    `max_connections`. 0: never."""
    max_long_polls: int = 65_536
    """The number of tailing readers that may wait at once. Further readers are refused because
    there are too many requests."""
    max_long_poll_s: float = 60.0
    """The longest time, in seconds, that a tailing reader may wait. A reader that asks for more is
    answered after this time."""
    segment_bytes: Annotated[int, Limits(SEGMENT_BYTES_LEAST, or_zero=True)] = 0
    """The size, in bytes, of one preallocated file of the log. 0: a 1024th of the disk, between 64
    and 256 MB."""
    log_cache_bytes: int = 128 * MIB
    """The newest bytes of the log that stay in the cache of the operating system, for readers that
    follow their ledgers. Older bytes are read from the disk. 0: no limit but the memory of the
    machine."""
    catch_up_bytes_per_s: int = 64 * MIB
    """The rate, in bytes per second, at which readers that are behind read in large pieces from
    each data directory while it takes entries. If twice the rate of the entries is more, that is
    the limit. A larger value lets these readers catch up sooner, but slows adds down. 0: no limit.
    """
    min_free_bytes: int = 256 * MIB
    """The low-water mark, in bytes: a bookie with less free space becomes read-only at once."""
    writable_free_bytes: int = 0
    """The high-water mark, in bytes: a bookie that became read-only for lack of space becomes
    writable again only once this much is free. At least `min_free_bytes` is used. 0:
    `min_free_bytes` and a quarter more."""
    read_only_dwell_s: float = 30.0
    """The shortest time, in seconds, for which a bookie that became read-only for lack of space
    stays read-only. It limits how often a bookie changes its state when its free space is near a
    mark."""
    seal_idle_s: PositiveSeconds = 0.2
    """Seconds without adds after which an empty group marks the end of the log as synced."""
    gc_enabled: bool = True
    """Whether this bookie deletes ledgers and copies that the metadata store does not name. false:
    never, whatever else is configured, and however full the disk is. `quire cluster gc off` does
    the same for the whole cluster."""
    metadata_mark_interval_s: PositiveSeconds = 10.0
    """Seconds between two marks that the bookie raises in the metadata store. If the store goes
    back to a state before the newest mark, the bookie detects that and deletes nothing."""
    gc_interval_s: PositiveSeconds = 600.0
    """Seconds between two searches for ledgers that were deleted in the metadata store. A smaller
    value frees space sooner."""
    gc_full_interval_s: PositiveSeconds = 30.0
    """Seconds between two such searches while the disk is full."""
    compact_minor_ratio: Share = 0.2
    """A segment of the log is compacted at a minor interval if a smaller share of it than this is
    live. 0: never."""
    compact_minor_interval_s: float = 3_600.0
    """Seconds between two minor compactions."""
    compact_major_ratio: Share = 0.8
    """A segment of the log is compacted at a major interval, and whenever the disk is full, if a
    smaller share of it than this is live. 0: never."""
    compact_major_interval_s: float = 86_400.0
    """Seconds between two major compactions."""
    compact_bytes_per_s: int = 16 * MIB
    """The rate, in bytes per second, at which compaction writes while the bookie takes entries. On
    a full disk there is no limit. 0: no limit."""
    compact_reserve_bytes: int = 256 * MIB
    """The bytes that are kept preallocated, at most one segment, so that a compaction can run on a
    full disk."""
    scrub_interval_s: float = 604_800.0
    """Seconds within which all stored data is read and checked once, in the background. 0: only
    data that reads found damaged is checked."""
    scrub_bytes_per_s: int = 4 * MIB
    """The rate, in bytes per second, at which that check reads from each data directory. 0: no
    limit."""
    index_cache_interval_s: float = 300.0
    """The shortest time, in seconds, between two writes of the index next to the log while the
    bookie runs. The stored index shortens a start after a crash."""
    index_cache_segments: PositiveInt = 16
    """The number of segments that must be newer than the stored index before it is written again,
    unless a segment that it covers has changed."""
    damage_report_interval_s: float = 10.0
    """Seconds between two checks for damaged entries on this bookie. Their ledgers are then marked
    as under-replicated. 0: never."""
    log_position_interval_s: float = 10.0
    """Seconds between two reports to the metadata store of how far the log has got, while it grows.
    If a data directory is restored from an older copy, the loss of entries that were written after
    the last report goes unnoticed. A new segment is always reported within a second. 0: only new
    segments, starts and clean stops are reported."""
    gc_over_replicated_interval_s: float = 3_600.0
    """Seconds between two searches for copies of closed ledgers whose metadata no longer names this
    bookie. Each search reads the metadata of every ledger that this bookie has. The second search
    that finds a copy deletes it. 0: never."""
    check_space_s: PositiveSeconds = 5.0
    """Seconds between two checks of the free space."""
    stop_timeout_s: PositiveSeconds = 10.0
    """Seconds that an orderly stop may take. After that the process ends with status 1, and data
    that is not sealed is checked at the next start."""
    session_timeout_s: Annotated[float, Limits(0.1, 3_600)] = 10.0
    """The time-out, in seconds, of the session with the metadata store. A bookie that died counts
    as registered for this long."""
    batch_scheduling: bool = True
    """Whether, on Linux, a thread that is woken lets the thread that woke it finish first
    (`SCHED_BATCH`), unless other work keeps the processors busy."""
    tls: TlsServerConfig | None = None
    """If this table is given, clients may secure their connections."""
    tls_required: bool = False
    """Whether connections without TLS are refused."""
    authorized_roles: tuple[str, ...] = ()
    """If this list is given, only clients whose certificate has one of these roles as its first
    role are served."""
