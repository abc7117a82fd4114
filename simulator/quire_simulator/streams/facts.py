"""What is known of one stream in a run: what its writers handed over and were told, what readers
were given, what somebody asked to be given up."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.codec.distributedlog.dlsn import DLSN, INITIAL_DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire_simulator.streams.plans import StreamPlan

PAYLOAD_REPETITIONS = (1, 1, 3, 20, 200)


@dataclass(slots=True, eq=False)
class WriterAttempt:
    """One writer that somebody opened, or tried to open; or a rename, which ends writers too."""

    who: str
    number: int
    """Of all of the run."""
    begun: int
    """Moments are counted: simulated time may stand still while one follows the other."""
    opened: int | None = None
    """When the call returned: it is the writer."""
    failed: int | None = None
    """When the call failed."""
    sent: list[Sent] = field(default_factory=list)
    """Plain records, in the order in which they were handed over."""
    tainted: bool = False
    """Opened while the stream was being deleted: it may belong to either life of it."""

    def follows(self, other: WriterAttempt) -> bool:
        """It was opened when the other had been: the other is out."""
        if self is other or self.opened is None or other.opened is None:
            return False
        return self.begun >= other.opened


@dataclass(slots=True, eq=False)
class Sent:
    """A record that was handed over once."""

    payload: bytes
    handle: WriterAttempt
    begun: int
    txid: int | None = None
    sequence: int | None = None
    """The sequence id that it must get, if it becomes part of the stream."""
    refused: bool = False
    """Its writer was told that nothing was appended."""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as readers see it."""

    payload: bytes
    position: DLSN
    txid: int
    sequence: int


@dataclass(slots=True)
class ObservedStream:
    """Of one life of a stream: it is deleted, and made again."""

    plan: StreamPlan
    life: int = 0
    handles: list[WriterAttempt] = field(default_factory=list)
    """Also attempts, in the order in which they began."""
    sent: dict[bytes, list[Sent]] = field(default_factory=dict)
    acked: dict[bytes, DLSN | None] = field(default_factory=dict)
    """Payload -> its position, where that was told."""
    log: dict[int, ReadRecord] = field(default_factory=dict)
    """By sequence id: what any reader was given."""
    places: dict[bytes, int] = field(default_factory=dict)
    """Payload -> sequence id."""
    segments: dict[str, StreamSegment] = field(default_factory=dict)
    """Node -> what the metadata says now."""
    asked: DLSN = INITIAL_DLSN
    """What lies before it may go."""
    producers: dict[str, int] = field(default_factory=dict)
    """Id -> the last record that was acknowledged; all before it are."""
    tokens: set[str] = field(default_factory=lambda: {""})
    """Fencing tokens one of which is in force."""
    setting: int = 0
    """How often somebody began to set one."""
    may_be_ended: bool = False
    ended: int | None = None
    """When somebody was told that it is ended."""
    deleting: bool = False
    """From the moment on at which somebody begins to delete it."""
    committed: dict[str, DLSN] = field(default_factory=dict)
    """By subscription: what was stored for sure."""

    def may_be_gone(self, seen: ReadRecord) -> bool:
        """Whether somebody has given this record up."""
        return self.plan.retained or seen.position < self.asked

    @property
    def truncated(self) -> bool:
        """Whether anything may have gone from the beginning."""
        return self.plan.retained or self.asked > INITIAL_DLSN


def producer_payload(producer_id: str, sequence: int) -> bytes:
    return b"%s/%d." % (producer_id.encode(), sequence) * (1 + sequence % 7)


def producer_of(payload: bytes) -> tuple[str, int] | None:
    """(producer, its number of the record); None for a plain record."""
    if not payload.startswith(b"p"):
        return None
    name, _, rest = payload.partition(b"/")
    return name.decode(), int(rest.partition(b".")[0])
