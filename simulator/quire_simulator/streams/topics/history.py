"""The invariants of topics, and what is known of each topic.

The nodes of topics and of their partitions are followed at every change of the metadata store. So
it is known which topics existed at any moment of a call, and each answer is compared with that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.name import StreamPaths
from quire.errors import QuireError
from quire.streams import Record, TopicPosition
from quire_simulator.invariants.checker import Checker
from quire_simulator.invariants.reports.listings import compare_listed
from quire_simulator.metadata.nodes import Change
from quire_simulator.world.world import World

NAMESPACE = "/sim/topics"
NODES = f"{NAMESPACE}/.quire/topics"
NAMES = ("clicks", "clicks/eu", "orders", "clicks/0")
"""The names of topics. The last one is also the name of a partition of the first one."""


@dataclass(slots=True)
class SentRecord:
    """A record that a client has tried to append."""

    life: TopicLife
    key: bytes | None
    headers: Mapping[str, bytes]
    txid: int | None
    partitions: tuple[int, ...]
    """The partitions that the record may be in."""
    begun: int
    place: TopicPosition | None = None
    """Where it is, as far as anybody was told."""
    refused: bool = False
    """Whether its append failed, and its client was told that nothing was done."""


@dataclass(slots=True)
class TopicLife:
    """One topic, from its creation to its deletion. A later topic of its name is another one."""

    name: str
    id: str
    partitions: int
    creator: str
    begun: int
    deleting: int | None = None
    """The moment when its deletion began."""
    gone: int | None = None
    there: dict[TopicPosition, bytes] = field(default_factory=dict)
    """The records that were acknowledged or read, by their places."""
    acked: dict[TopicPosition, int] = field(default_factory=dict)
    """The places of acknowledged records, with the moment of the acknowledgement."""
    sequences: dict[TopicPosition, int] = field(default_factory=dict)
    newest: dict[int, DLSN] = field(default_factory=dict)
    """The last acknowledged position of each partition."""
    floors: dict[int, DLSN] = field(default_factory=dict)
    """The position of each partition before which records may have been given up."""
    committed: dict[tuple[str, int], DLSN] = field(default_factory=dict)
    """The latest position that was certainly stored, by subscription and partition."""
    tried: dict[tuple[str, int], set[DLSN]] = field(default_factory=dict)
    """The positions that anybody has tried to store."""

    def floor(self, partition: int) -> DLSN:
        """Return the position of a partition before which records may be missing."""
        return self.floors.get(partition, DLSN(0, 0, 0))


class TopicReading:
    """A checker of what one reader of a topic receives."""

    def __init__(
        self,
        facts: TopicInvariants,
        who: str,
        life: TopicLife,
        begins: Mapping[int, DLSN | None],
        sequences: Mapping[int, int],
    ) -> None:
        """Follow a reader of the partitions in `begins`.

        A position is where the reader of that partition begins, and None means that it is not
        known. `sequences` has the sequence ids at which it begins instead.
        """
        self.facts = facts
        self.who = who
        self.life = life
        self.upcoming = dict(begins)
        """The position after the last record of each partition."""
        self.sequences = dict(sequences)
        """The sequence id of the next record of each partition, if it is known."""
        self.from_sequence = dict(sequences)
        self.received = 0

    def saw(self, partition: int, record: Record) -> None:
        """Check a record that was delivered."""
        facts, life, at = self.facts, self.life, record.position
        place, fail = TopicPosition(partition, at), self.fail
        self.received += 1
        facts.checker.checks += 1
        if partition not in self.upcoming:
            fail("a_record_of_a_topic_is_in_its_partition", f"received {place}, which it left out")
            return
        upcoming = self.upcoming[partition]
        if upcoming is not None and at < upcoming:
            fail("records_of_a_partition_keep_their_order", f"{place} came after {upcoming}")
        sent = facts.sent.get(record.payload)
        if sent is None or sent.life is not life:
            fail("a_record_of_a_topic_is_what_was_appended", f"{place} is {record.payload!r}")
            return
        facts.judge_content(self.who, place, sent, record)
        if life.there.setdefault(place, record.payload) != record.payload:
            what = f"{place} is {record.payload!r} and {life.there[place]!r}"
            fail("a_record_of_a_topic_is_what_was_appended", what)
        if sent.place not in (None, place):
            fail("a_record_of_a_topic_is_there_once", f"{record.payload!r}: {sent.place}, {place}")
        sent.place = place
        if sent.refused:
            what = f"{record.payload!r} is at {place}, although its append was refused"
            fail("what_was_refused_is_not_done", what)
        self.nothing_between(partition, upcoming, at)
        sequence = self.sequences.get(partition)
        exact = partition not in self.from_sequence
        if sequence is not None and (record.sequence != sequence if exact
                                     else record.sequence < sequence):  # fmt: skip
            what = f"{place} has the sequence id {record.sequence} instead of {sequence}"
            fail("records_of_a_partition_keep_their_order", what)
        self.from_sequence.pop(partition, None)
        self.sequences[partition] = record.sequence + 1
        if life.sequences.setdefault(place, record.sequence) != record.sequence:
            what = f"{place} had the sequence id {life.sequences[place]}, now {record.sequence}"
            fail("records_of_a_partition_keep_their_order", what)
        self.upcoming[partition] = at.next_slot()

    def gap(self, partition: int, kind: str, behind: DLSN) -> None:
        """Check a gap that was delivered, or reported by an error."""
        floor = self.life.floor(partition)
        # Segments are given up as a whole, so a gap may reach to the beginning of the next one.
        if kind != "truncated" or (behind > floor and behind.lssn > floor.lssn + 1):
            what = f"{kind} records before {behind} of partition {partition} are missing"
            self.fail("a_record_of_a_topic_is_there", f"{what}, but {floor} was given up")
        self.begins_at(partition, behind)

    def begins_at(self, partition: int, at: DLSN) -> None:
        """Record that nothing before a position is delivered."""
        upcoming = self.upcoming.get(partition)
        if upcoming is None or at > upcoming:
            self.upcoming[partition] = at
        self.sequences.pop(partition, None)
        self.from_sequence.pop(partition, None)

    def ended(self, acknowledged: Iterable[TopicPosition]) -> None:
        """Check that a reader that has read everything has received these records."""
        for place in acknowledged:
            partition, at = place
            upcoming = self.upcoming.get(partition)
            if partition not in self.upcoming or at < self.life.floor(partition):
                continue
            begin = self.from_sequence.get(partition)
            if begin is not None:
                if self.life.sequences.get(place, -1) < begin:
                    continue
            elif upcoming is None or at < upcoming:
                continue
            self.fail("a_record_of_a_topic_is_there", f"{place} was not received")

    def nothing_between(self, partition: int, upcoming: DLSN | None, at: DLSN) -> None:
        """Check that there is nothing between two positions, which a reader has skipped."""
        begin = self.from_sequence.get(partition)
        if upcoming is None and begin is None:
            return
        floor = self.life.floor(partition)
        for place in self.life.there:
            if place.partition != partition or not floor <= place.position < at:
                continue
            if begin is not None and self.life.sequences.get(place, -1) < begin:
                continue
            if upcoming is None or place.position >= upcoming:
                self.fail("a_record_of_a_topic_is_there", f"{place} was skipped before {at}")
                return

    def fail(self, invariant: str, what: str) -> None:
        self.facts.fail(invariant, self.life, f"{self.who}: {what}")


class TopicInvariants:
    """A checker of the topics of a namespace, and of what clients are told of them."""

    def __init__(self, world: World, checker: Checker) -> None:
        self.world = world
        self.checker = checker
        self.lives: dict[str, TopicLife] = {}
        """Every topic that there ever was, by its id."""
        self.now: dict[str, TopicLife] = {}
        """The topics that exist, by name."""
        self.sent: dict[bytes, SentRecord] = {}
        """Every record that was ever passed to a writer."""
        self.changed: dict[str, int] = {}
        """The moment when the topic of a name was last created, marked as deleted or deleted."""
        self._moment = 0
        self._others = world.cluster.tree_observer
        world.cluster.tree_observer = self._on_tree

    def moment(self) -> int:
        """Return a number for the current moment, greater than all before."""
        self._moment += 1
        return self._moment

    def fail(self, invariant: str, life: TopicLife, what: str) -> None:
        self.checker.fail(invariant, f"topic {life.name} ({life.id}): {what}")

    def during(self, name: str, since: int) -> list[TopicLife]:
        """Return the topics of this name that existed at some time since a moment."""
        return [
            life
            for life in self.lives.values()
            if life.name == name and (life.gone is None or life.gone > since)
        ]

    def unchanged(self, life: TopicLife, since: int) -> bool:
        """Return whether this is the topic of its name, as it has been since a moment."""
        here = self.now.get(life.name) is life and life.deleting is None
        return here and self.changed[life.name] <= since

    # -- the metadata store -------------------------------------------------------------------

    def _on_tree(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        self._others(changes)
        if any(path.startswith(NAMESPACE) for path, _ in changes):
            self._look()

    def _look(self) -> None:
        tree = self.world.cluster.tree
        found: set[str] = set()
        for quoted in tree.children(NODES) or []:
            node = tree.get(f"{NODES}/{quoted}")
            if node is None or not node.value:
                continue
            stored, name = json.loads(node.value), unquote(quoted)
            found.add(name)
            life = self.now.get(name)
            if life is None or life.id != stored["id"]:
                life = self._begins(name, stored)
            if stored.get("ending") and life.deleting is None:
                life.deleting = self.changed[name] = self.moment()
            self._is_whole(life)
        for name, life in list(self.now.items()):
            if name not in found:
                self._ends(life)

    def _begins(self, name: str, stored: Mapping[str, object]) -> TopicLife:
        if (former := self.now.get(name)) is not None:
            self._ends(former)
        number, moment = stored["partitions"], self.moment()
        assert isinstance(number, int)
        life = TopicLife(name, str(stored["id"]), number, self.world.metadata_caller, moment)
        self.lives[life.id] = self.now[name] = life
        self.changed[name] = moment
        return life

    def _ends(self, life: TopicLife) -> None:
        if life.deleting is None:
            self.fail("a_topic_is_whole", life, "it is gone, but its deletion had not begun")
        if left := self._streams_of(life):
            self.fail("a_topic_is_whole", life, f"it is gone, but its streams {left} are not")
        life.gone = self.changed[life.name] = self.moment()
        del self.now[life.name]

    def _is_whole(self, life: TopicLife) -> None:
        streams = self._streams_of(life)
        if life.deleting is None and streams != list(range(life.partitions)):
            what = f"it has the partitions {streams} of {life.partitions}"
            self.fail("a_topic_is_whole", life, what)
        if self._is_stream(life.name):
            self.fail("a_name_has_one_meaning", life, "a stream has its name too")

    def _streams_of(self, life: TopicLife) -> list[int]:
        names = self.world.cluster.tree.children(f"{NAMESPACE}/{life.name}") or []
        numbers = sorted(int(one) for one in names if one.isdecimal())
        # A number is a stream only if it has segments: a topic may have a name such as clicks/0.
        return [one for one in numbers if self._is_stream(f"{life.name}/{one}")]

    def _is_stream(self, name: str) -> bool:
        return self.world.cluster.tree.get(StreamPaths(NAMESPACE, name).segments) is not None

    # -- topics -------------------------------------------------------------------------------

    def was_created(self, who: str, name: str, partitions: int, since: int) -> None:
        """Check a creation that succeeded."""
        mine = [one for one in self.during(name, since)
                if one.begun > since and one.creator == who]  # fmt: skip
        if not mine or mine[-1].partitions != partitions:
            what = f"{who} created topic {name} with {partitions} partitions, but there is {mine}"
            self.checker.fail("a_topic_is_as_it_was_created", what)

    def was_not_created(self, who: str, name: str, since: int, error: QuireError) -> None:
        """Check a creation that failed."""
        mine = [one for one in self.during(name, since)
                if one.begun > since and one.creator == who]  # fmt: skip
        if error.outcome_known and mine:
            what = f"{who} created topic {name}, although it was told: {error}"
            self.checker.fail("what_was_refused_is_not_done", what)

    def was_opened(self, who: str, name: str, id: str, partitions: int, since: int) -> None:
        """Check what a client was told of a topic."""
        life = self.lives.get(id)
        if life is None or life not in self.during(name, since) or life.partitions != partitions:
            what = f"{who} opened topic {name} ({id}) with {partitions} partitions: {life}"
            self.checker.fail("a_topic_is_as_it_was_created", what)

    def was_not_there(self, who: str, name: str, since: int, error: QuireError) -> None:
        """Check that a topic that is said not to exist was not there at some time."""
        life = self.now.get(name)
        if life is not None and self.unchanged(life, since):
            self.fail("a_topic_is_there", life, f"{who} was told: {error}")

    def was_deleted(self, who: str, before: TopicLife | None) -> None:
        """Check a deletion that succeeded. `before` is the topic that existed when it began."""
        if before is not None and before.gone is None:
            self.fail("what_was_deleted_is_gone", before, f"{who} deleted it, but it still exists")

    def were_listed(self, who: str, prefix: str, names: Sequence[str],
                    before: Iterable[str], since: int) -> None:  # fmt: skip
        """Check a list of topics."""
        unsure = {name for name, moment in self.changed.items() if moment > since}
        there = [name for name in before if name.startswith(prefix)]
        what = f"{who} listed the topics with the prefix {prefix!r}"
        possible = [name for name in unsure if name.startswith(prefix)]
        compare_listed(self.checker, what, names, there, possible)

    # -- records ------------------------------------------------------------------------------

    def judge_content(
        self, who: str, place: TopicPosition, sent: SentRecord, record: Record
    ) -> None:
        """Check that a record has the content that was appended, in a right partition."""
        if place.partition not in sent.partitions:
            what = f"{who}: {record.payload!r} is at {place}, not in {sent.partitions}"
            self.fail("a_record_of_a_topic_is_in_its_partition", sent.life, what)
        told = (record.key, dict(record.headers), sent.txid if sent.txid is None else record.txid)
        if told != (sent.key, dict(sent.headers), sent.txid):
            what = f"{who}: {record.payload!r} has {told} instead of {sent}"
            self.fail("a_record_of_a_topic_is_what_was_appended", sent.life, what)

    def was_appended(self, who: str, payload: bytes, place: TopicPosition) -> None:
        """Check the acknowledgement of a record."""
        sent = self.sent[payload]
        life, at = sent.life, place.position
        self.checker.checks += 1
        if life.gone is not None and sent.begun > life.gone:
            what = f"{who} appended {payload!r} after the deletion"
            self.fail("a_deleted_topic_takes_no_more", life, what)
        if place.partition not in sent.partitions:
            what = f"{who}: {payload!r} was appended at {place}, not in {sent.partitions}"
            self.fail("a_record_of_a_topic_is_in_its_partition", life, what)
        if life.there.setdefault(place, payload) != payload or sent.place not in (None, place):
            what = f"{who}: {payload!r} is at {place}, where {life.there[place]!r} is"
            self.fail("a_record_of_a_topic_is_there_once", life, what)
        for other, moment in life.acked.items():
            if other.partition == place.partition and other.position > at and moment < sent.begun:
                what = f"{who}: {payload!r} is at {place}, before the older record at {other}"
                self.fail("records_of_a_partition_keep_their_order", life, what)
                break
        sent.place, life.acked[place] = place, self.moment()
        life.newest[place.partition] = max(at, life.newest.get(place.partition, at))

    # -- subscriptions ------------------------------------------------------------------------

    def were_told(
        self,
        who: str,
        life: TopicLife,
        subscriber: str,
        positions: Mapping[int, DLSN],
        before: Mapping[tuple[str, int], DLSN],
        since: int,
    ) -> None:
        """Check the stored positions of a subscription. `before` is what was stored before."""
        if not self.unchanged(life, since):
            return
        for partition in range(life.partitions):
            stored, at = before.get((subscriber, partition)), positions.get(partition)
            if stored is not None and (at is None or at < stored):
                what = f"{who}: {subscriber} is at {at} of partition {partition}, after {stored}"
                self.fail("a_stored_position_moves_forward", life, what)
        strange = {
            partition: at
            for partition, at in positions.items()
            if at not in life.tried.get((subscriber, partition), ())
        }
        if strange:
            what = f"{who}: {subscriber} is at {strange}, which nobody has stored"
            self.fail("a_stored_position_moves_forward", life, what)
