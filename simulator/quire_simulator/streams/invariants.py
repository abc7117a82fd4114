"""The invariants of one stream.

Each is a function that describes what is wrong, or returns None. They are checked when a writer
gets an answer, when a reader receives a record, when the metadata changes, and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from quire.codec.distributedlog.dlsn import DLSN, INITIAL_DLSN
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire_simulator.streams.facts import (
    ObservedStream,
    ReadRecord,
    Sent,
    WriterAttempt,
    producer_of,
)

# -- when a record is acknowledged to its writer -----------------------------------------------

AckInvariant = Callable[[ObservedStream, Sent, DLSN | None], str | None]


def a_successor_ends_the_writer(facts: ObservedStream, sent: Sent, at: DLSN | None) -> str | None:
    """A writer never appends a record that it submitted after another became the writer.

    A producer may still learn that such a record was there before.
    """
    # Nobody can fence a writer whose ledger was deleted. It learns of its successor when it rolls.
    for other in () if at is None or at.lssn in facts.destroyed else facts.handles:
        if other.follows(sent.handle) and (other.opened or 0) <= sent.begun:
            what = f"{sent.handle.who} appended {sent.payload[:20]!r}"
            return f"{what} after {other.who} had become the writer"
    return None


def an_ended_stream_takes_no_more(facts: ObservedStream, sent: Sent, at: DLSN | None) -> str | None:
    if facts.ended is not None and sent.begun >= facts.ended and at is not None:
        return f"{sent.payload[:20]!r} was appended after the stream was ended"
    return None


def what_was_refused_is_not_there(facts: ObservedStream, sent: Sent, at: DLSN | None) -> str | None:
    if sent.refused:
        return f"{sent.payload[:20]!r} was refused, but later acknowledged"
    return None


def told_positions_are_true(facts: ObservedStream, sent: Sent, at: DLSN | None) -> str | None:
    """A record is at the position that was reported to its writer."""
    if at is None:
        return None
    told = facts.acked.get(sent.payload)
    if told not in (None, at):
        return f"{sent.payload[:20]!r} was acknowledged at {told}, and again at {at}"
    sequence = facts.places.get(sent.payload)
    if sequence is not None and facts.log[sequence].position != at:
        return (
            f"{sent.payload[:20]!r} is at {facts.log[sequence].position}, "
            f"but was acknowledged at {at}"
        )
    return None


ACK_INVARIANTS: tuple[AckInvariant, ...] = (
    a_successor_ends_the_writer,
    an_ended_stream_takes_no_more,
    what_was_refused_is_not_there,
    told_positions_are_true,
)


# -- when a reader receives a record -----------------------------------------------------------


@dataclass(slots=True)
class ReaderPosition:
    """The position of one reader."""

    who: str
    begin: DLSN
    """Its first record is the first record at or after this position."""
    upcoming: int | None = None
    """The sequence id of the next record, once the reader has received one."""
    floor: DLSN = INITIAL_DLSN
    """The position before which everything was truncated when the reader was opened."""
    life: ObservedStream | None = None
    """The life of the stream to which the records of the present `StreamReader` belong, once it has
    certainly received one.
    """

    def has_passed(self, seen: ReadRecord) -> bool:
        """Return whether the reader has received this record, or a later one, or a gap after it."""
        if self.upcoming is None:
            return seen.position < self.begin
        return seen.sequence < self.upcoming


ReadInvariant = Callable[[ObservedStream, ReaderPosition, ReadRecord], str | None]


def only_what_was_appended_is_read(
    facts: ObservedStream, view: ReaderPosition, seen: ReadRecord
) -> str | None:
    if any(not sent.refused for sent in facts.sent.get(seen.payload, ())):
        return None
    return f"{view.who} read {seen.payload[:40]!r}, which was never appended"


def no_record_is_skipped(
    facts: ObservedStream, view: ReaderPosition, seen: ReadRecord
) -> str | None:
    """Each reader receives every record from its start on, once and in order."""
    if view.upcoming is not None:
        if seen.sequence == view.upcoming or _ended_with(facts, view.upcoming - 1, seen):
            return None
        return f"{view.who} received record {seen.sequence} instead of {view.upcoming}"
    if seen.position < view.begin:
        return f"{view.who} began at {view.begin} but received {seen.position}"
    before = facts.log.get(seen.sequence - 1)
    if before is not None and before.position >= view.begin and not facts.may_be_gone(before):
        return f"{view.who} began at {view.begin} but did not receive {before.position}"
    return None


def _ended_with(facts: ObservedStream, sequence: int, seen: ReadRecord) -> bool:
    """Return whether a segment that was lost later ended with this record, just before `seen`.

    A writer that finds such a segment leaves out all the sequence ids that it may have had. A
    reader that had read it to its end has missed nothing, and is not told of a gap.
    """
    last = facts.log.get(sequence)
    if last is None or last.position.lssn not in facts.destroyed:
        return False
    follows = seen.position.lssn == last.position.lssn + 1
    return follows and not any(last.position < at < seen.position for at in facts.positions)


def what_was_truncated_is_not_read(
    facts: ObservedStream, view: ReaderPosition, seen: ReadRecord
) -> str | None:
    if seen.position >= view.floor:
        return None
    return f"{view.who} received {seen.position}, although all before {view.floor} was truncated"


def a_record_is_there_once(
    facts: ObservedStream, view: ReaderPosition, seen: ReadRecord
) -> str | None:
    sequence = facts.places.get(seen.payload)
    if sequence in (None, seen.sequence):
        return None
    return f"{seen.payload[:20]!r} is both record {sequence} and record {seen.sequence}"


def readers_agree(facts: ObservedStream, view: ReaderPosition, seen: ReadRecord) -> str | None:
    found = facts.log.get(seen.sequence)
    if found in (None, seen):
        return None
    return f"record {seen.sequence} was {found}, but {view.who} received {seen}"


def records_are_in_order(
    facts: ObservedStream, view: ReaderPosition, seen: ReadRecord
) -> str | None:
    """Positions ascend with sequence ids, and txids do not descend."""
    for near, ascending in ((-1, 1), (1, -1)):
        other = facts.log.get(seen.sequence + near)
        if other is None:
            continue
        pair = (other, seen) if ascending > 0 else (seen, other)
        if pair[0].position >= pair[1].position or pair[0].txid > pair[1].txid:
            return f"{pair[1]} follows {pair[0]}"
    return None


def a_record_is_what_its_writer_said(
    facts: ObservedStream, view: ReaderPosition, seen: ReadRecord
) -> str | None:
    """The record has the position, txid and sequence id that its writer received or gave."""
    told = facts.acked.get(seen.payload)
    if told not in (None, seen.position):
        return f"{seen.payload[:20]!r} is at {seen.position}, but was acknowledged at {told}"
    for sent in facts.sent.get(seen.payload, ()):
        if sent.sequence not in (None, seen.sequence) and not sent.refused:
            return f"record {sent.sequence} of a writer has sequence id {seen.sequence}"
        if sent.txid is not None and len(facts.sent[seen.payload]) == 1 and sent.txid != seen.txid:
            return f"record {seen.sequence} was given txid {sent.txid}, but has {seen.txid}"
    return None


READ_INVARIANTS: tuple[ReadInvariant, ...] = (
    only_what_was_appended_is_read,
    no_record_is_skipped,
    what_was_truncated_is_not_read,
    a_record_is_there_once,
    readers_agree,
    records_are_in_order,
    a_record_is_what_its_writer_said,
)


# -- when the metadata changes -----------------------------------------------------------------

Nodes = Mapping[str, StreamSegment]
MetadataInvariant = Callable[[ObservedStream, Nodes, Nodes], str | None]
"""A function of the segments before and after a change."""


def in_order(nodes: Nodes) -> list[StreamSegment]:
    return sorted(nodes.values(), key=lambda segment: (segment.lssn, segment.in_progress))


def numbers_of_segments_have_no_hole(
    facts: ObservedStream, before: Nodes, after: Nodes
) -> str | None:
    numbers = [segment.lssn for segment in in_order(after)]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return f"the numbers of its segments are {numbers}"
    return None


def only_the_newest_segment_is_open(
    facts: ObservedStream, before: Nodes, after: Nodes
) -> str | None:
    found = [segment.lssn for segment in in_order(after)[:-1] if segment.in_progress]
    return f"segments {found} are in progress, but are not the newest" if found else None


def sequence_ids_have_no_hole(facts: ObservedStream, before: Nodes, after: Nodes) -> str | None:
    upcoming: int | None = None
    for segment in in_order(after):
        if segment.in_progress:
            continue
        begin = segment.start_sequence_id
        if upcoming not in (None, begin) or (segment.lssn == 1 and begin):
            return f"segment {segment.lssn} begins with record {begin}, not {upcoming or 0}"
        upcoming = segment.following_sequence_id
    return None


def a_completed_segment_stays_as_it_is(
    facts: ObservedStream, before: Nodes, after: Nodes
) -> str | None:
    """Only the truncation of a completed segment may change."""
    for name, old in before.items():
        new = after.get(name)
        if new is None or old.in_progress:
            continue
        same = replace(
            old,
            status=new.status,
            min_active_entry_id=new.min_active_entry_id,
            min_active_slot_id=new.min_active_slot_id,
        )
        if same != new:
            return f"{old} became {new}"
    return None


def truncation_never_goes_back(facts: ObservedStream, before: Nodes, after: Nodes) -> str | None:
    for name, old in before.items():
        new = after.get(name)
        if new is not None and (new.truncation, new.min_active_dlsn) < (
            old.truncation,
            old.min_active_dlsn,
        ):
            return f"segment {old.lssn} was {old.truncation.name} and is now {new.truncation.name}"
    return None


def only_what_was_asked_for_is_truncated(
    facts: ObservedStream, before: Nodes, after: Nodes
) -> str | None:
    if facts.plan.retained:
        return None
    for segment in after.values():
        if segment.truncation is Truncation.TRUNCATED:
            gone = segment.last_dlsn >= facts.asked
        else:
            gone = segment.truncation is Truncation.PARTIAL and (
                segment.min_active_dlsn > facts.asked
            )
        if gone:
            return f"{segment} is truncated, but only records before {facts.asked} may be"
    return None


def a_segment_goes_when_it_is_truncated(
    facts: ObservedStream, before: Nodes, after: Nodes
) -> str | None:
    """The node of a completed segment exists until the segment is truncated."""
    for name, old in before.items():
        if name in after or old.in_progress or old.truncation is Truncation.TRUNCATED:
            continue
        return f"segment {old.lssn} was deleted while it was {old.truncation.name}"
    return None


METADATA_INVARIANTS: tuple[MetadataInvariant, ...] = (
    numbers_of_segments_have_no_hole,
    only_the_newest_segment_is_open,
    sequence_ids_have_no_hole,
    a_completed_segment_stays_as_it_is,
    truncation_never_goes_back,
    only_what_was_asked_for_is_truncated,
    a_segment_goes_when_it_is_truncated,
)


# -- in the end --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JudgedStream:
    """The records that a judge read, from the oldest to the last."""

    oldest: DLSN
    records: Sequence[ReadRecord]


EndInvariant = Callable[[ObservedStream, JudgedStream], str | None]


def an_acknowledged_record_is_there(facts: ObservedStream, whole: JudgedStream) -> str | None:
    there = {seen.payload: seen for seen in whole.records}
    for payload, position in facts.acked.items():
        if payload in there or payload in facts.places:
            continue  # What was read before is checked by `what_was_read_is_there`.
        if (position is None and facts.truncated) or (position or INITIAL_DLSN) < whole.oldest:
            continue
        if facts.destroyed and (position is None or position.lssn in facts.destroyed):
            continue
        return f"{payload[:20]!r} was acknowledged at {position}, but is missing"
    return None


def what_was_read_is_there(facts: ObservedStream, whole: JudgedStream) -> str | None:
    """A record that was read exists until it is truncated."""
    there = {seen.sequence for seen in whole.records}
    for seen in facts.log.values():
        lost = seen.position.lssn in facts.destroyed
        if seen.sequence not in there and seen.position >= whole.oldest and not lost:
            return f"record {seen.sequence} at {seen.position} was read, but is missing"
    return None


def the_first_record_is_number_0(facts: ObservedStream, whole: JudgedStream) -> str | None:
    kept = not facts.truncated and not facts.destroyed
    if whole.records and kept and whole.records[0].sequence:
        return f"its first record is number {whole.records[0].sequence}"
    return None


def what_a_writer_sent_is_there_up_to_some_record(
    facts: ObservedStream, whole: JudgedStream
) -> str | None:
    """A writer that failed stored a prefix of its records and nothing after it."""
    for handle in facts.handles:
        missing: Sent | None = None
        certain = not facts.truncated
        for sent in handle.sent:
            sequence = facts.places.get(sent.payload)
            if sent.refused or (facts.destroyed and _may_be_lost(facts, sent)):
                continue
            if sequence is None:
                missing = missing or (sent if certain else None)  # Otherwise it may be truncated.
            elif missing is not None:
                return (
                    f"{sent.payload[:20]!r} exists, but {missing.payload[:20]!r} before it does not"
                )
            else:
                certain = certain or facts.log[sequence].position >= whole.oldest
    return None


def _may_be_lost(facts: ObservedStream, sent: Sent) -> bool:
    """Return whether this record may have been in a ledger that was deleted."""
    if sent.payload in facts.places:
        return False
    at = facts.acked.get(sent.payload)
    return at is None or at.lssn in facts.destroyed


def a_writer_s_records_are_in_its_order(facts: ObservedStream, whole: JudgedStream) -> str | None:
    for handle in facts.handles:
        upcoming = -1
        for sent in handle.sent:
            sequence = facts.places.get(sent.payload)
            if sequence is not None:
                if sequence < upcoming:
                    return f"{sent.payload[:20]!r} is record {sequence}, but follows {upcoming}"
                upcoming = sequence
    return None


def writers_come_one_after_the_other(facts: ObservedStream, whole: JudgedStream) -> str | None:
    """No record of a writer comes after a record of a later writer.

    A batch of a sink may, because sinks take turns. Those of one sink come one after the other.
    """
    spans: list[tuple[WriterAttempt, int, int]] = []
    for handle in facts.handles:
        found = [facts.places[s.payload] for s in handle.sent if s.payload in facts.places]
        if found and not handle.tainted:
            spans.append((handle, min(found), max(found)))
    for one, _, last in spans:
        for other, first, _ in spans:
            if one.sink is not None and not (one.sink and one.sink == other.sink):
                continue
            if other.follows(one) and first < last:
                return f"record {last} of {one.who} comes after {first} of {other.who}"
    return None


def producers_are_in_the_stream_without_a_gap(
    facts: ObservedStream, whole: JudgedStream
) -> str | None:
    """A producer's numbers ascend by one, from 0 to at least the last acknowledged one."""
    upcoming: dict[str, int] = {}
    for seen in whole.records:
        found = producer_of(seen.payload)
        if found is None:
            continue
        producer_id, number = found
        expected = upcoming.get(producer_id, number if facts.truncated else 0)
        if number != expected:
            return f"{producer_id} has record {number} instead of {expected}"
        upcoming[producer_id] = number + 1
    for producer_id, acked in facts.producers.items():
        if acked >= upcoming.get(producer_id, acked + 1 if facts.truncated else 0):
            return (
                f"{producer_id}: {acked} was acknowledged, "
                f"but {upcoming.get(producer_id)} is the next"
            )
    return None


END_INVARIANTS: tuple[EndInvariant, ...] = (
    an_acknowledged_record_is_there,
    what_was_read_is_there,
    the_first_record_is_number_0,
    what_a_writer_sent_is_there_up_to_some_record,
    a_writer_s_records_are_in_its_order,
    writers_come_one_after_the_other,
    producers_are_in_the_stream_without_a_gap,
)
