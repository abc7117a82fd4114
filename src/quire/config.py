"""Every limit of a client and of a bookie, with its unit. Values are frozen; pass your own.

All rooms import this module. `quire.configuration` reads these values from the configuration file,
the environment and options.
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
"""Four blocks of the log."""
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
    """How a client secures its connections; files are PEM, and followed when they change."""

    ca: str | None = None
    """The authorities that may sign the certificates of bookies; None: those of the system."""
    certificate: str | None = None
    """What the client shows to bookies that want to know it: its certificate, then the chain."""
    private_key: str | None = None
    """None: it stands in the file of the certificate."""
    key_password_file: str | None = None
    """Holds the password of an encrypted key; None: the key is not encrypted."""
    verify_host_name: bool = True
    """The certificate must name the host or address that the bookie registered. Switch it off only
    for clusters whose certificates have no names."""
    reload_check_s: float = 1.0
    """Between two looks, before a handshake, whether the files changed."""


@dataclass(frozen=True, slots=True)
class TlsServerConfig(CheckedSettings):
    """How a bookie secures connections whose client asks for it; files are PEM, and followed when
    they change."""

    certificate: str
    """The bookie's own, then the chain. Its names must include the host that it advertises."""
    private_key: str | None = None
    """None: it stands in the file of the certificate."""
    key_password_file: str | None = None
    """Holds the password of an encrypted key; None: the key is not encrypted."""
    ca: str | None = None
    """The authorities that may sign the certificates of clients."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    """Whether clients must show one that `ca` signed. Optional: those that show none are served,
    too."""
    reload_check_s: float = 1.0
    """Between two looks, before a handshake, whether the files changed."""
    handshake_timeout_s: PositiveSeconds = 10.0
    """A client that has not come to its end by then is cut off."""
    max_handshakes: PositiveInt = 256
    """At once; more wait for their turn, within the same time-out."""


@dataclass(frozen=True, slots=True)
class PlacementConfig(CheckedSettings):
    """On which bookies a client puts what it writes (docs/guides/placement.md)."""

    policy: str = "rack-aware"
    """rack-aware, region-aware, zone-aware, local-first, any, or the name of an entry point in the
    group `quire.placement`. Where no locations are known, all but those that enforce something
    choose any bookies, on different hosts if possible."""
    locations: str | Mapping[str, str] = ""
    """Where bookies stand: `table:FILE`, `script:FILE`, `metadata` or `metadata:/NODE`; or a
    mapping of bookie ids or hosts to locations. '': nothing is known."""
    own_location: str = ""
    """Of this client, for policies that prefer what is near. '': not known."""
    own_host: str = ""
    """Of this client, as its bookie registers it; for local-first."""
    min_racks: int = 2
    """rack-aware: so many racks for every write quorum (at most as many as it has members)."""
    enforce_racks: bool = False
    """rack-aware: fail rather than use fewer; bookies whose rack is not known are not used."""
    regions: tuple[str, ...] = ()
    """region-aware: write to these only, every ack quorum in `min_regions` of them."""
    min_regions: int = 2
    """region-aware: so many regions for every ack quorum."""
    min_zones: int = 2
    """zone-aware: so many zones for every write quorum."""
    desired_zones: int = 3
    """zone-aware: so many, if there are."""
    strict_zones: bool = True
    """zone-aware: fail rather than use fewer than `min_zones`."""
    spread_acks: bool = False
    """rack-aware and region-aware: an append also waits until bookies of `min_racks` racks have it
    (zone-aware: of `min_zones` zones), or of all racks that its write quorum is in."""
    local_reads: bool | None = None
    """Read from near bookies first. None: as the policy does (region-aware and local-first do)."""
    disk_weighted: bool = False
    """Among equals choose bookies in proportion to their free disk space."""
    weight_multiple_max: float = 3.0
    """A bookie counts for at most so many times the median."""
    weight_refresh_s: PositiveSeconds = 60.0
    """Between two rounds of asking bookies for their free space."""
    table_check_s: PositiveSeconds = 5.0
    """Between two looks whether the table file has changed."""
    script_names_max: PositiveInt = 100
    """Names that one call of the script is given."""
    script_timeout_s: PositiveSeconds = 10.0
    """Of one call of the script."""
    script_refresh_s: PositiveSeconds = 300.0
    """After so long the script is asked again about all bookies."""
    options: Mapping[str, str] = field(default_factory=dict)
    """For policies of your own."""


@was_in_milliseconds("explicit_lac_interval", "long_poll")
@dataclass(frozen=True, slots=True)
class ClientConfig(CheckedSettings):
    connect_timeout_s: PositiveSeconds = 5.0
    """For a connection to a bookie, its TLS handshake included."""
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
    """Seconds until the operating system ends a connection to a bookie whose machine acknowledges
    nothing any more (TCP keepalive and user time-out). 0: the default of the system, often
    hours."""
    add_timeout_s: PositiveSeconds = 5.0
    """A bookie that leaves an add unanswered for so long is replaced."""
    read_timeout_s: PositiveSeconds = 5.0
    """A bookie that leaves a read unanswered for so long, and sends nothing else meanwhile, counts
    as unknown."""
    speculative_read_s: float = 1.0
    """A read that takes longer is also sent to the next replica; the first good answer counts."""
    recovery_timeout_s: PositiveSeconds = 60.0
    """Opening with recovery gives up after this; nothing is lost, open again."""
    max_unacked_bytes: PositiveInt = 64 * MIB
    """Payload bytes of one writer that the slowest bookie of its ensemble has not acknowledged.
    Behind it appends wait; at `add_timeout_s` the bookie is replaced."""
    max_unforced_bytes: PositiveInt = 64 * MIB
    """Payload bytes of one deferred-sync writer that no `force` has made durable: they are held in
    case a bookie has to be replaced. At the bound the writer forces, and appends wait meanwhile."""
    max_held_bytes: int = 64 * MIB
    """Of one writer with caller-chosen ids: what waits behind a missing id. Behind it such entries
    are refused."""
    explicit_lac_interval_s: float = 0.0
    """Where no later entry tells the bookies which entry is the newest acknowledged one, the writer
    tells them within this time in a message of its own: so readers see the last entry of a writer
    that pauses. 0: never."""
    long_poll_s: PositiveSeconds = 2.0
    """A tailing reader waits so long for one bookie before it asks the next. Keep it well below
    `read_timeout_s`, within which the bookie must answer after that."""
    max_turn_bytes: PositiveInt = 512 * KIB
    """Appends of one event-loop iteration are sent at its end, or when they reach this."""
    read_window_bytes: PositiveInt = 1 * MIB
    """What one window asks for: a batch read, or single reads of each bookie of the ensemble."""
    read_windows: PositiveInt = 4
    """Windows in flight for one `read`."""
    single_reads_in_flight: PositiveInt = 256
    """Single reads in one window at most: of a striped ledger, or of bookies without batch reads.
    """
    add_quorum_timeout_s: float = 0.0
    """An append that an ack quorum has not acknowledged within this time ends its writer, however
    often members of the ensemble were replaced meanwhile. 0: never."""
    lost_quorum_wait_s: float = 30.0
    """Where so many members of an ensemble cannot be reached that no ack quorum is left, and no
    other bookie can take a place, the writer tries them again for so long before it fails; where
    `add_quorum_timeout_s` is set, for that. 0: it fails at once, as Apache's client."""
    watch_written_ledgers: bool = False
    """Whether a writer watches its ledger's metadata and stops when another client recovers, closes
    or deletes the ledger, or creates another one with its id. Without the watch it learns that from
    bookies, or at its next change of the metadata. Use it if bookies may come back empty under
    their former ids, or if ledger ids are reused."""
    max_ensemble_changes: int = 1_000
    """Of one writer; behind it appends fail."""
    avoid_failed_bookie_s: float = 30.0
    """A bookie that failed is chosen for new ensembles only where nothing else is left."""
    slow_bookie_s: float = 60.0
    """A bookie that was overtaken by the answer to a speculative read is asked behind others for
    so long."""
    absence_recheck_s: float = 2.0
    """Seconds until a bookie is asked again after it denied an entry of a closed ledger that
    another replica has, because it may merely lag. If the ack quorum is smaller than the write
    quorum it is asked three times, each pause twice the one before, until its replica counts as
    missing. Readers do not wait for that. 0: the first denial counts."""
    quarantine_errors: int = 0
    """So many errors of a bookie within `quarantine_window_s` put it into quarantine: it is chosen,
    and read from, only where nothing else is left. 0: errors never do (`avoid_failed_bookie_s`
    does without), as with Apache's client, where 100 is the number once it is switched on."""
    quarantine_window_s: float = 60.0
    """In which the errors of a bookie are counted."""
    quarantine_s: float = 1_800.0
    """How long a bookie stays in quarantine."""
    quarantine_liars: bool = True
    """A bookie whose answer cannot be right (`Client.suspects`) is put into quarantine, too."""
    assume_liars: int = 0
    """So many bookies of any ensemble may lie, and nothing acknowledged is to be lost by it:
    opening asks for more answers, and fails where it cannot have them. See
    docs/explanation/replication.md."""
    bookies_wait_s: float = 2.0
    """How long `create_ledger` and an ensemble change wait for enough bookies to register."""
    ledger_metadata_version: Annotated[int, Limits(choices=LEDGER_METADATA_VERSIONS)] = 3
    """The format in which the metadata of new ledgers is stored: 3, or 2 where old
    programs read them that do not know 3. A ledger keeps its format for life."""
    placement: PlacementConfig = PlacementConfig()
    """On which bookies new ensembles and replacements are."""
    tls: TlsClientConfig | None = None
    """Given: every connection to a bookie is secured before first use, or is not made."""

    @property
    def lost_quorum_limit_s(self) -> float:
        """How long a writer without an ack quorum tries its members again."""
        return self.add_quorum_timeout_s or self.lost_quorum_wait_s


@was_in_milliseconds("max_long_poll", "seal_idle", "session_timeout")
@dataclass(frozen=True, slots=True)
class BookieConfig(CheckedSettings):
    max_frame_bytes: Annotated[int, Limits(FRAME_BYTES_LEAST, 2**30)] = 5 * MIB
    """Of one request; who sends a larger one is cut off. Bounds the size of entries."""
    max_batch_read_bytes: PositiveInt = 5 * MIB
    """Of the answer to one batch read, whatever the client asks for."""
    max_queued_bytes: PositiveInt = 64 * MIB
    """Received and not yet synced. Behind it the bookie stops reading from its sockets."""
    max_unsent_bytes: PositiveInt = 16 * MIB
    """The bytes of answers that one connection may have: those being read, and those that its
    client has not taken. Further reads of the connection wait. One answer is always allowed,
    whatever its size."""
    max_answer_bytes: PositiveInt = 256 * MIB
    """The bytes of answers that all connections together may have. Reads beyond it wait, and the
    connections take turns."""
    unsent_timeout_s: float = 60.0
    """Seconds until a connection is closed whose client takes none of its answers. While reads wait
    because of `max_answer_bytes` it is closed after 2 s. 0: only then."""
    max_partial_bytes: PositiveInt = 64 * MIB
    """The bytes of incomplete requests that all connections together may have. Beyond it only the
    oldest of these requests are read, and connections whose request is older than a second are
    closed. Requests smaller than 16 KiB are always read."""
    partial_frame_timeout_s: float = 60.0
    """Seconds within which a request must arrive completely, or its connection is closed. 0:
    never."""
    dead_client_s: float = 30.0
    """Seconds until the operating system ends a connection to a client whose machine acknowledges
    nothing any more (TCP keepalive and user time-out). 0: the default of the system, often
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
    """Tailing readers that wait at once; behind it they are told that there are too many."""
    max_long_poll_s: float = 60.0
    """A reader that wants to wait longer is answered after this."""
    segment_bytes: Annotated[int, Limits(SEGMENT_BYTES_LEAST, or_zero=True)] = 0
    """Of one file of the log, preallocated. 0: a 1024th of the disk, from 64 to 256 MB."""
    log_cache_bytes: int = 128 * MIB
    """Of the log's newest bytes, which the system's cache keeps for those who follow their ledgers;
    what is older is read from the device. 0: no bound but the machine's memory."""
    catch_up_bytes_per_s: int = 64 * MIB
    """Read in large pieces from each data directory while it takes entries, for readers who are
    behind; twice what it takes, where that is more. 0: no bound, at the price of what adds take."""
    min_free_bytes: int = 256 * MIB
    """The low-water mark, in bytes: a bookie with less free space becomes read-only at once."""
    writable_free_bytes: int = 0
    """The high-water mark, in bytes: a bookie that became read-only for lack of space becomes
    writable again only once this much is free. At least `min_free_bytes`. 0: `min_free_bytes` and a
    quarter more."""
    read_only_dwell_s: float = 30.0
    """The shortest time, in seconds, for which a bookie that became read-only for lack of space
    stays read-only. It bounds how often a bookie changes its state when its free space is near a
    mark."""
    seal_idle_s: PositiveSeconds = 0.2
    """After so long without adds, an empty group marks the end of the log as synced."""
    gc_enabled: bool = True
    """Whether this bookie deletes ledgers and copies that the metadata store does not name. false:
    never, whatever else is configured, and however full the disk is. `quire cluster gc off` does
    the same for the whole cluster."""
    metadata_mark_interval_s: PositiveSeconds = 10.0
    """Seconds between two marks that the bookie raises in the metadata store. The bookie detects a
    store that went back to a state before the newest mark, and then deletes nothing."""
    gc_interval_s: PositiveSeconds = 600.0
    """Between two looks for ledgers that were deleted in the metadata store."""
    gc_full_interval_s: PositiveSeconds = 30.0
    """The same while the disk is full."""
    compact_minor_ratio: Share = 0.2
    """Segments of the log of which less is alive are compacted at each minor interval; 0: never."""
    compact_minor_interval_s: float = 3_600.0
    """Between two minor compactions."""
    compact_major_ratio: Share = 0.8
    """The same at each major interval, and whenever the disk is full; 0: never."""
    compact_major_interval_s: float = 86_400.0
    """Between two major compactions."""
    compact_bytes_per_s: int = 16 * MIB
    """Written by compaction while entries are taken; 0: no bound. On a full disk there is none."""
    compact_reserve_bytes: int = 256 * MIB
    """Kept preallocated, so that a compaction can run on a full disk; at most one segment."""
    scrub_interval_s: float = 604_800.0
    """All that is stored is read and checked so often, in the background; 0: only what reads found
    damaged."""
    scrub_bytes_per_s: int = 4 * MIB
    """Read by that, of each data directory; 0: no bound."""
    index_cache_interval_s: float = 300.0
    """So often at most the index is written beside the log while the bookie runs, for a start
    behind a crash."""
    index_cache_segments: PositiveInt = 16
    """And not before so many segments are newer, unless one that it covers has changed."""
    damage_report_interval_s: float = 10.0
    """Between two looks whether entries are damaged here, to mark their ledgers as lacking
    replicas. 0: never."""
    log_position_interval_s: float = 10.0
    """Seconds between two reports to the metadata store of how far the log has got, while it grows.
    If a data directory is restored from an older copy, the loss of entries that were written after
    the last report goes unnoticed. A new segment is always reported within a second. 0: only new
    segments, starts and clean stops are reported."""
    gc_over_replicated_interval_s: float = 3_600.0
    """Between two looks for copies of closed ledgers that do not name this bookie any more, at the
    cost of reading the metadata of every ledger that is here. The second look that finds one drops
    it. 0: never."""
    check_space_s: PositiveSeconds = 5.0
    """Between two looks how much space is free."""
    stop_timeout_s: PositiveSeconds = 10.0
    """For a stop that was asked for; behind it the process ends with status 1. What is not sealed
    then is checked at the next start."""
    session_timeout_s: Annotated[float, Limits(0.1, 3_600)] = 10.0
    """Of the session with the metadata store: for so long a bookie that died still counts as
    registered."""
    batch_scheduling: bool = True
    """On Linux: a thread that is woken lets whoever woke it finish first (`SCHED_BATCH`), as long
    as nothing else keeps the processors busy."""
    tls: TlsServerConfig | None = None
    """Given: clients may secure their connections."""
    tls_required: bool = False
    """Refuse what comes in clear text."""
    authorized_roles: tuple[str, ...] = ()
    """Given: serve only clients whose certificate has one of these as its first role."""
