"""Every limit of a client and of a bookie, with its unit. Values are frozen; pass your own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TlsClientConfig:
    """How a client secures its connections; files are PEM, and followed when they change."""

    ca: str | None = None
    """The authorities that may sign the certificates of bookies; None: those of the system."""
    certificate: str | None = None
    """What the client shows to bookies that want to know it: its certificate, then the chain."""
    private_key: str | None = None
    """None: it stands in the file of the certificate."""
    key_password_file: str | None = None
    verify_host_name: bool = True
    """The certificate must name the host or address that the bookie registered. Switch it off only
    for clusters whose certificates have no names."""
    reload_check_s: float = 1.0
    """Between two looks, before a handshake, whether the files changed."""


@dataclass(frozen=True, slots=True)
class TlsServerConfig:
    """How a bookie secures connections whose client asks for it; files are PEM, and followed when
    they change."""

    certificate: str
    """The bookie's own, then the chain. Its names must include the host that it advertises."""
    private_key: str | None = None
    """None: it stands in the file of the certificate."""
    key_password_file: str | None = None
    ca: str | None = None
    """The authorities that may sign the certificates of clients."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    reload_check_s: float = 1.0
    """Between two looks, before a handshake, whether the files changed."""
    handshake_timeout_s: float = 10.0
    max_handshakes: int = 256
    """At once; more wait for their turn, within the same time-out."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    connect_timeout_s: float = 5.0
    add_timeout_s: float = 5.0
    """A bookie that leaves an add unanswered for so long is replaced."""
    read_timeout_s: float = 5.0
    """A bookie that leaves a read unanswered for so long, and sends nothing else meanwhile, counts
    as unknown."""
    speculative_read_s: float = 1.0
    """A read that takes longer is also sent to the next replica; the first good answer counts."""
    recovery_timeout_s: float = 60.0
    """Opening with recovery gives up after this; nothing is lost, open again."""
    max_unacked_bytes: int = 64 * MIB
    """Payload bytes of one writer that the slowest bookie of its ensemble has not acknowledged.
    Behind it appends wait; at `add_timeout_s` the bookie is replaced."""
    max_unforced_bytes: int = 64 * MIB
    """Payload bytes of one deferred-sync writer that no `force` has made durable: they are held in
    case a bookie has to be replaced. At the bound the writer forces, and appends wait meanwhile."""
    max_held_bytes: int = 64 * MIB
    """Of one writer with caller-chosen ids: what waits behind a missing id. Behind it such entries
    are refused."""
    explicit_lac_interval_ms: int = 0
    """Where no later entry tells the bookies which entry is the newest acknowledged one, the writer
    tells them within this time in a message of its own: so readers see the last entry of a writer
    that pauses. 0: never."""
    long_poll_ms: int = 2_000
    """A tailing reader waits so long for one bookie before it asks the next. Keep it well below
    `read_timeout_s`, within which the bookie must answer after that."""
    max_turn_bytes: int = 512 * KIB
    """Appends of one turn of the event loop are sent at its end, or when they reach this."""
    read_window_bytes: int = 1 * MIB
    """What one batch read asks for."""
    read_windows: int = 4
    """Batch reads in flight for one `read`."""
    single_reads_in_flight: int = 256
    """Single reads in flight for one `read` of a striped ledger, or of a bookie without batch
    reads."""
    max_ensemble_changes: int = 1_000
    """Of one writer; behind it appends fail."""
    avoid_failed_bookie_s: float = 30.0
    """A bookie that failed is chosen for new ensembles only where nothing else is left."""
    bookies_wait_s: float = 2.0
    """How long `create_ledger` and an ensemble change wait for enough bookies to register."""
    ledger_metadata_version: int = 3
    """The format in which the metadata of new ledgers is stored: 3, or 2 where old
    programs read them that do not know 3. A ledger keeps its format for life."""
    tls: TlsClientConfig | None = None
    """Given: every connection to a bookie is secured before first use, or is not made."""


@dataclass(frozen=True, slots=True)
class BookieConfig:
    max_frame_bytes: int = 5 * MIB
    max_batch_read_bytes: int = 5 * MIB
    max_queued_bytes: int = 64 * MIB
    """Received and not yet synced. Behind it the bookie stops reading from its sockets."""
    max_unsent_bytes: int = 16 * MIB
    """Answers that one connection has not taken. Behind it the bookie stops reading from it."""
    max_connections: int = 4_096
    max_long_polls: int = 65_536
    """Tailing readers that wait at once; behind it they are told that there are too many."""
    max_long_poll_ms: int = 60_000
    """A reader that wants to wait longer is answered after this."""
    segment_bytes: int = 64 * MIB
    min_free_bytes: int = 256 * MIB
    """Less free space than this makes the bookie read-only."""
    seal_idle_ms: int = 200
    gc_interval_s: float = 600.0
    """Between two looks for ledgers that were deleted in the metadata store."""
    check_space_s: float = 5.0
    stop_timeout_s: float = 10.0
    session_timeout_ms: int = 10_000
    tls: TlsServerConfig | None = None
    """Given: clients may secure their connections."""
    tls_required: bool = False
    """Refuse what comes in clear text."""
    authorized_roles: tuple[str, ...] = ()
    """Given: serve only clients whose certificate has one of these as its first role."""
