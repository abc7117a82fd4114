"""Everything known about one stream in a run.

These are the records that its writers submitted, the answers that they got, the records that
readers received, and the positions before which records may be truncated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.codec.distributedlog.dlsn import DLSN, INITIAL_DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire_simulator.streams.batches import PublishedFacts
from quire_simulator.streams.plans import StreamPlan

PAYLOAD_REPETITIONS = (1, 1, 3, 20, 200)


@dataclass(slots=True, eq=False)
class WriterAttempt:
    """One attempt to open a writer, or a rename, which ends writers too."""

    who: str
    number: int
    """The number of the attempt in the whole run."""
    begun: int
    """The moment when the call began. Moments are counted, because simulated time may stand still
    between two events.
    """
    opened: int | None = None
    """The moment when the call returned, which made it the writer."""
    failed: int | None = None
    """The moment when the call failed."""
    sent: list[Sent] = field(default_factory=list)
    """Plain records, in the order in which they were submitted."""
    sink: str | None = None
    """The writer id of a sink that planned a batch, "" for a job, or None for a writer."""
    tainted: bool = False
    """Whether the stream was being deleted meanwhile: the writer may belong to either life."""

    def follows(self, other: WriterAttempt) -> bool:
        """Return whether this writer was opened after the other one, which is therefore fenced."""
        if self is other or self.opened is None or other.opened is None:
            return False
        return self.begun >= other.opened

    @property
    def ended(self) -> int | None:
        """The moment when the call ended, or None if it has not."""
        return self.failed if self.opened is None else self.opened


@dataclass(slots=True, eq=False)
class Sent:
    """A record that was submitted once."""

    payload: bytes
    handle: WriterAttempt
    begun: int
    txid: int | None = None
    sequence: int | None = None
    """The sequence id that the record must get if it becomes part of the stream."""
    refused: bool = False
    """Whether its writer learned that nothing was appended."""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as readers see it."""

    payload: bytes
    position: DLSN
    txid: int
    sequence: int


@dataclass(slots=True)
class ObservedStream:
    """Everything known about one life of a stream, from its creation to its deletion."""

    plan: StreamPlan
    life: int = 0
    handles: list[WriterAttempt] = field(default_factory=list)
    """All attempts to open a writer, in the order in which they began."""
    sent: dict[bytes, list[Sent]] = field(default_factory=dict)
    acked: dict[bytes, DLSN | None] = field(default_factory=dict)
    """The position of each acknowledged payload, if it was reported."""
    positions: dict[DLSN, bytes] = field(default_factory=dict)
    """The payload at each position that a writer or a reader has received."""
    log: dict[int, ReadRecord] = field(default_factory=dict)
    """Every record that any reader received, by sequence id."""
    places: dict[bytes, int] = field(default_factory=dict)
    """The sequence id of each payload."""
    segments: dict[str, StreamSegment] = field(default_factory=dict)
    """The segments in the metadata now, by node name."""
    asked: DLSN = INITIAL_DLSN
    """The position before which everything may be truncated."""
    destroyed: set[int] = field(default_factory=set)
    """The numbers of segments whose ledger was deleted while they were in progress."""
    floor: DLSN = INITIAL_DLSN
    """The position before which a reader that is opened now receives nothing."""
    published: PublishedFacts = field(default_factory=PublishedFacts)
    """The batches that drivers publish."""
    producers: dict[str, int] = field(default_factory=dict)
    """The last acknowledged record of each producer. All before it are acknowledged too."""
    tokens: set[str] = field(default_factory=lambda: {""})
    """Fencing tokens, of which one is in force."""
    setting: int = 0
    """The number of attempts to set a token."""
    may_be_ended: bool = False
    ended: int | None = None
    """The moment when a client learned that the stream is ended."""
    deleting: bool = False
    """Whether a client has begun to delete the stream."""
    committing: set[str] = field(default_factory=set)
    """The subscriptions that have begun to store a position with this life of the stream."""
    committed: dict[str, DLSN] = field(default_factory=dict)
    """The position that each subscription has stored for certain."""

    def may_be_gone(self, seen: ReadRecord) -> bool:
        """Return whether this record may have been truncated, or lost with its ledger."""
        given_up = self.plan.retained or seen.position < self.asked
        return given_up or seen.position.lssn in self.destroyed

    @property
    def truncated(self) -> bool:
        """Whether the beginning of the stream may have been truncated."""
        return self.plan.retained or self.asked > INITIAL_DLSN


def producer_payload(producer_id: str, sequence: int) -> bytes:
    return b"%s/%d." % (producer_id.encode(), sequence) * (1 + sequence % 7)


def producer_of(payload: bytes) -> tuple[str, int] | None:
    """Return the producer and its number of the record, or None for a plain record."""
    if not payload.startswith(b"p"):
        return None
    name, _, rest = payload.partition(b"/")
    return name.decode(), int(rest.partition(b".")[0])
