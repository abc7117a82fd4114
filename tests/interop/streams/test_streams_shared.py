"""Streams that both sides write in turn.

The tests cover crashes, fencing, the lock, control records, and remaining nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from quire.codec.distributedlog.control_record import (
    CreationTime,
    FencingToken,
    ProducerMark,
    encode_control,
)
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import wrap
from quire.codec.distributedlog.limits import MAX_POSITION
from quire.codec.distributedlog.lock import LockMember
from quire.codec.distributedlog.record import (
    KEEPALIVE_PAYLOAD,
    RecordFlag,
    control_record,
    decode_entry,
    encode_record,
    encode_records,
)
from quire.codec.distributedlog.segment import StreamSegment
from quire.streams.namespace.namespace import Namespace
from quire.testing._process import with_parent
from tests.support.interop.apache_streams import result as java_result
from tests.support.interop.quire_streams import QuireStreams, run
from tests.support.interop.stream_place import BY_JAVA, BY_QUIRE, SIDES, Place
from tests.support.interop.stream_sides import Sent, StreamError, Streams, pairs, records
from tests.support.long import long_after
from tests.support.waiting import wait_for

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[3]
_numbers = itertools.count()


def new_name() -> str:
    return f"shared-{next(_numbers)}"


def numbered(count: int, first: int = 0) -> list[Sent]:
    return [(number, b"%d" % number) for number in range(first, first + count)]


# -- who takes over ---------------------------------------------------------------------------


def writes_until_killed(place: Place, side: str, name: str, first: int, count: int) -> int:
    """Run a writing process, kill it after this number of records, and return how many it
    acknowledged.
    """
    where = [place.uri()] if side == "apache" else [place.cluster.uri, BY_QUIRE]
    command = [*with_parent(), sys.executable, "-m", "tests.support.interop.stream_writer_program"]
    with subprocess.Popen(
        [*command, side, *where, name, str(first)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        last = first - 1
        try:
            while last < first + count:
                line = process.stdout.readline()
                assert line, process.stderr.read()
                last = int(line)
        finally:
            process.kill()
        for line in process.stdout:
            if line.endswith("\n"):
                last = int(line)
    return last + 1


@pytest.mark.parametrize(
    ("killed", "then"),
    long_after(2, [("apache", "quire"), ("quire", "apache"), ("quire", "quire")]),
)
def test_the_other_side_continues_after_a_killed_writer(
    place: Place, killed: str, then: str
) -> None:
    """Every acknowledged record exists once and in order, and the other side continues."""
    name = new_name()
    told = writes_until_killed(place, killed, name, 0, 60)
    other = place.side(then)
    follower = (place.quire() if killed == "apache" else place.apache()).reader(name)
    assert pairs(follower.take(told - 5)) == numbered(told - 5)
    writer = other.writer(name)
    writer.write(1_000_000, b"then")
    writer.close()
    segments = other.segments(name)
    assert [segment.lssn for segment in segments] == list(range(1, len(segments) + 1))
    assert not any(segment.in_progress for segment in segments)
    count = sum(segment.record_count for segment in segments)
    assert told < count <= told + 6
    sent = [*numbered(count - 1), (1_000_000, b"then")]
    assert pairs(follower.take(count - told + 5)) == sent[told - 5 :]
    follower.close()
    for side in SIDES:
        got = place.side(side).read(name, count)
        assert pairs(got) == sent
        assert [record.sequence for record in got] == list(range(count))


@pytest.mark.parametrize("path", long_after(1, [BY_QUIRE, BY_JAVA]))
def test_writers_of_both_sides_alternate_while_readers_follow(place: Place, path: str) -> None:
    """Writers of both sides that close or give up, and readers of both that follow all along."""
    name = new_name()
    quire, apache = place.quire(path), place.apache(path, positionGapDetectionEnabled=True)
    followers = []
    sent: list[Sent] = []
    for turn in range(10):
        one: Streams = (quire, apache)[turn % 2] if turn < 8 else quire
        writer = one.writer(name)
        if turn == 1:
            followers = [side.reader(name) for side in (quire, apache)]
        more = numbered(7, len(sent))
        assert len(writer.write_all(more[:5])) == 5
        for record in more[5:]:
            writer.write(*record)
        sent += more
        if turn % 3:
            writer.close()
        else:
            writer.abandon()
    quire.writer(name).close()
    for follower in followers:
        assert pairs(follower.take(len(sent))) == sent
        follower.close()
    assert quire.segments(name) == apache.segments(name)
    for side in (quire, apache):
        assert pairs(side.read(name, len(sent))) == sent


def test_both_sides_complete_a_segment_in_the_same_way(place: Place) -> None:
    """Either side completes what Java left in progress.

    The nodes must be equal except for the ledger and the time. Control records, a record set, and
    the end of the stream come last.
    """

    def writes(writer: Any) -> None:
        writer.write_all(numbered(5))
        writer.write(7, b"last")

    def set_last(writer: Any) -> None:
        writer.write(1, b"x")
        writer.write_set(2, [b"a", b"b", b"c"])

    def ends(writer: Any) -> None:
        writer.write(1, b"x")
        java_result(writer.java.markEndOfStream())

    def nothing(writer: Any) -> None:
        pass

    quire = place.quire()
    for flush, work in itertools.product((True, False), (writes, set_last, ends, nothing)):
        left: list[list[tuple[str, str]]] = []
        for recovers in SIDES:
            name = new_name()
            apache = place.apache(enableImmediateFlush=flush)
            writer = apache.writer(name)
            work(writer)
            writer.abandon()
            if recovers == "apache":
                apache.recover(name)
            else:
                with contextlib.suppress(StreamError):  # it is complete, and ended
                    quire.writer(name).close()
            left.append(nodes(place, f"{BY_QUIRE}/{name}", quire, 1))
        assert left[0] == left[1], work


def test_either_side_completes_two_segments_in_progress(place: Place) -> None:
    """A crash between the transactions of a roll of Java's leaves two; either completes them."""
    for side in SIDES:
        name = new_name()
        quire = place.quire()
        quire.create(name)
        for lssn in (1, 2):
            sent = numbered(3, 3 * lssn - 3)
            control = control_record(3, sent[-1][0])
            entries = [entry(sent), wrap([control], len(control))]
            run(put_segment(quire.aio, name, lssn, entries, closed=False, completed=False))
        by = place.side(side)
        writer = by.writer(name)
        writer.write(6, b"6")
        writer.close()
        for reader in SIDES:
            got = place.side(reader).read(name, 7)
            assert pairs(got) == numbered(7)
            assert [record.sequence for record in got] == list(range(7))


def test_java_continues_after_a_lost_segment(place: Place) -> None:
    """The ledger of a segment was deleted while it was written.

    Java sees a completed segment, writes after it, reads before and after it, and can truncate it.
    """
    name, quire, apache = new_name(), place.quire(txids="given"), place.apache()
    quire.create(name)
    quire.writer(name).write_all(numbered(3))
    writer = quire.writer(name)  # completes the first segment
    writer.write_all(numbered(3, 3))
    writer.abandon()
    lost = quire.segments(name)[-1]
    run(quire.aio.client.delete_ledger(lost.ledger_id))
    writer = quire.writer(name)
    writer.write_all(numbered(3, 6))
    writer.close()
    by_java = apache.writer(name)
    by_java.write_all(numbered(3, 9))
    by_java.close()
    kept = quire.segments(name)[lost.lssn - 1]
    assert kept.lost
    for side in SIDES:
        by = place.side(side)
        found = by.segments(name)
        assert [segment.lssn for segment in found] == [1, 2, 3, 4]
        assert found[1] == kept
        reader = by.reader(name)
        assert pairs(reader.take(3)) == numbered(3)
        reader.close()
        behind = by.read(name, 6, DLSN(3, 0, 0))
        assert pairs(behind) == numbered(6, 6)
        first = 3 + MAX_POSITION
        assert [record.sequence for record in behind] == list(range(first, first + 6))
    with pytest.raises(StreamError, match="StreamGapError"):
        quire.read(name, 9)
    apache.truncate(name, DLSN(3, 0, 0))
    for side in SIDES:
        assert pairs(place.side(side).read(name, 6)) == numbered(6, 6)


@pytest.mark.parametrize("first", SIDES)
def test_a_former_writer_is_fenced_by_the_other_side(place: Place, first: str) -> None:
    """Neither writer takes the lock. The former one gets errors, and its late records are not
    read."""
    name = new_name()
    java, quire = place.apache(writeLockEnabled=False), place.quire()
    one, other = (java, quire) if first == "apache" else (quire, java)
    former = one.writer(name)
    former.write_all(numbered(3))
    latter = other.writer(name)
    latter.write(3, b"3")
    kinds = set()
    for _ in range(3):
        with pytest.raises(StreamError) as refused:
            former.write(4, b"lost")
        kinds.add(refused.value.kind)
    assert kinds <= {
        "StreamFencedError", "BKTransmitException", "WriteException", "ZKException",
        "NodeExistsException", "WriteCancelledException", "LockingException",
    }, kinds  # fmt: skip
    latter.write(4, b"4")
    latter.close()
    former.abandon()
    for reader in (java, quire):
        assert pairs(reader.read(name, 5)) == numbered(5)
    assert quire.segments(name) == java.segments(name)


@pytest.mark.parametrize("writing", SIDES)
def test_a_deletion_by_the_other_side_fences_the_writer(place: Place, writing: str) -> None:
    """Bookies take entries of ledgers that were deleted, so that it has to be fenced."""
    name = new_name()
    quire = place.quire()
    writer = place.side(writing).writer(name)
    writer.write(0, b"0")
    quire.delete(name)
    for _ in range(3):
        with pytest.raises(StreamError):
            writer.write(1, b"lost")
    writer.abandon()
    assert name not in quire.names()
    assert name not in place.cluster.kazoo.get_children(BY_QUIRE)


# -- the lock ---------------------------------------------------------------------------------


def members(place: Place, name: str) -> list[LockMember]:
    """`name`: of a stream, or the whole path of one."""
    path = f"{name if name.startswith('/') else f'{BY_QUIRE}/{name}'}/<default>/lock"
    found = []
    for child in place.cluster.kazoo.get_children(path):
        try:
            data, stat = place.cluster.kazoo.get(f"{path}/{child}")
        except NoNodeError:
            continue
        found.append(LockMember.parse(child, data, stat.ephemeralOwner))
        assert data.decode() == found[-1].client_id
        assert stat.ephemeralOwner == found[-1].session_id
    return sorted(found, key=lambda member: member.number)


def test_quire_waits_for_javas_lock(place: Place) -> None:
    name = new_name()
    apache, quire = place.apache(client_id="somebody"), place.quire()
    writer = apache.writer(name)
    writer.write(0, b"0")
    for seconds in (0, 0.2):
        with pytest.raises(StreamError, match="somebody") as refused:
            quire.writer(name, lock=seconds)
        assert refused.value.kind == "StreamLockedError"
    writer.write(1, b"1")  # Nothing has disturbed it.
    [held] = members(place, name)
    waiting = run(start(quire.aio.open_writer(name, lock=60)))
    wait_for(lambda: len(members(place, name)) == 2, "we wait in line")
    assert members(place, name)[0] == held
    writer.write(2, b"2")
    writer.close()
    ours = run(finish(waiting))
    run(ours.append(b"3", txid=3))
    [held] = members(place, name)
    assert held.client_id.startswith("quire/")
    run(ours.close())
    assert members(place, name) == []
    assert pairs(apache.read(name, 4)) == numbered(4)


def test_java_waits_for_our_lock(place: Place) -> None:
    name = new_name()
    apache, quire = place.apache(lockTimeoutSeconds=1), place.quire()
    writer = quire.writer(name, lock=0)
    writer.write(0, b"0")
    with pytest.raises(StreamError, match="quire/") as refused:
        apache.writer(name)
    assert refused.value.kind == "OwnershipAcquireFailedException"
    wait_for(lambda: len(members(place, name)) == 1, "Java has given up")
    writer.write(1, b"1")
    manager = place.apache(lockTimeoutSeconds=60).java.openLog(name)
    waiting = manager.openAsyncLogWriter()
    wait_for(lambda: len(members(place, name)) == 2, "Java waits in line")
    writer.write(2, b"2")
    writer.close()
    # It gets the lock and nothing else: what it had read of the stream before is outdated. After a
    # Java writer the same holds.
    with pytest.raises(StreamError) as refused:
        java_result(waiting)
    assert refused.value.kind == "NodeExistsException"
    java_result(manager.asyncClose())
    apache.writer(name).close()
    writer = quire.writer(name, lock=10)
    writer.write(3, b"3")
    writer.abandon()
    wait_for(lambda: not members(place, name), "the lock goes with its writer")
    assert pairs(apache.read(name, 4)) == numbered(4)


async def start(work: Any) -> Any:
    return asyncio.create_task(work)


async def finish(task: Any) -> Any:
    return await task


def test_a_lock_held_by_java_does_not_move_with_a_rename(place: Place) -> None:
    """Renaming takes the stream from under its writer, which gets errors; the lock is free."""
    name, new = new_name(), new_name()
    apache, quire = place.apache(), place.quire()
    writer = apache.writer(name)
    writer.write(0, b"0")
    quire.rename(name, new)
    with pytest.raises(StreamError):
        writer.write(1, b"lost")
    writer.abandon()
    other = place.apache(lockTimeoutSeconds=0).writer(new)
    other.write(1, b"1")
    other.close()
    assert pairs(quire.read(new, 2)) == numbered(2)


# -- control records --------------------------------------------------------------------------


def entry(sent: Sequence[Sent]) -> bytes:
    """The first of a segment."""
    parts, size = encode_records([p for _, p in sent], [t for t, _ in sent], 1)
    return wrap(parts, size)


async def put_segment(
    namespace: Namespace, name: str, lssn: int, entries: Sequence[bytes], *,
    closed: bool = True, completed: bool = True, **facts: int,
) -> StreamSegment:  # fmt: skip
    """Create a segment of these entries directly in the metadata."""
    client, metadata = namespace.client, namespace.metadata(name)
    ledger = await client.create_ledger(password=b"")
    for each in entries:
        await ledger.append(each)
    if closed:
        await ledger.close()
    else:
        ledger.abandon()
    claim = await metadata.claim()
    await metadata.allocate(claim, ledger.ledger_id)
    segment = StreamSegment(lssn, ledger.ledger_id, 0)
    await metadata.change(claim, begin=segment)
    if completed:
        segment = segment.completed(completion_time_ms=1, start_sequence_id=0, **facts)
        await metadata.change(claim, complete=segment)
    return segment


def marked(sent: Sequence[Sent]) -> tuple[list[bytes], list[DLSN]]:
    """Entries with control records of all kinds at all places, and where the records are."""
    controls = itertools.cycle(
        [
            encode_control(ProducerMark("p", 1, 1)),
            KEEPALIVE_PAYLOAD,
            encode_control(CreationTime(1), FencingToken("token")),
            b"",
            bytes(50_000),
        ]
    )
    entries: list[bytes] = []
    positions: list[DLSN] = []
    parts: list[bytes] = []
    for at, (txid, payload) in enumerate(sent):
        for _ in range((0, 1, 0, 2)[at % 4]):
            parts.append(control_record(at, max(0, sent[at - 1][0]), next(controls)))
        positions.append(DLSN(1, len(entries), len(parts)))
        parts.append(encode_record(at + 1, txid, payload))
        if at % 5 == 4:
            if at % 2:
                parts.append(control_record(at + 1, txid, next(controls)))
            entries.append(wrap(parts, sum(map(len, parts))))
            parts = []
        if at % 15 == 14:
            alone = control_record(at + 1, txid, next(controls))
            entries.append(wrap([alone], len(alone)))
    return entries, positions


def test_java_skips_control_records_among_records(place: Place) -> None:
    """Java's readers pass over them wherever they stand, count positions on, and find their way to
    every record by position and by txid."""
    quire = place.quire(BY_JAVA)
    strict = place.apache(BY_JAVA, positionGapDetectionEnabled=True)
    sent = records(60, size=30)
    entries, positions = marked(sent)
    for completed in (True, False):
        name = new_name()
        quire.create(name)
        last = positions[-1]
        facts: dict[str, Any] = {} if not completed else {
            "last_txid": sent[-1][0], "record_count": 60, "last_entry_id": last.entry_id,
            "last_slot_id": last.slot_id,
        }  # fmt: skip
        run(put_segment(quire.aio, name, 1, entries, completed=completed, **facts))
        for reader in (quire, strict):
            got = reader.read(name, 60)
            assert pairs(got) == sent
            assert [record.position for record in got] == positions
            assert [record.sequence for record in got] == list(range(60))
        for at in range(0, 60, 7):
            assert pairs(strict.read(name, 60 - at, positions[at])) == sent[at:]
            if at % 4 == 3:  # from the control record before it on
                before = positions[at]._replace(slot_id=positions[at].slot_id - 1)
                assert pairs(strict.read(name, 60 - at, before)) == sent[at:]
            found = [record for record in sent if record[0] >= sent[at][0]]
            assert pairs(strict.read(name, len(found), sent[at][0])) == found
            blocking = strict.read_blocking(name, 60 - at, sent[at][0])
            assert pairs(blocking)[: len(found)] == found[: len(blocking)]
        assert pairs(strict.read_blocking(name, 60, DLSN(1, 0, 0))) == sent
        assert strict.count(name) == 60
        assert strict.last_position(name) == last
        if not completed:
            strict.recover(name)
            [segment] = strict.segments(name)
            assert segment.record_count == 60
            assert pairs(quire.read(name, 60)) == sent


def test_producers_are_known_after_javas_writes(place: Place) -> None:
    """Java writes on a stream whose producers number their records; afterwards they are known."""
    name = new_name()
    quire, strict = place.quire(), place.apache(positionGapDetectionEnabled=True)
    follower = strict.reader
    sent: list[Sent] = []

    async def produces(first: int, count: int, txid: int) -> int:
        writer = await quire.aio.open_writer(name, create=True)
        producer = await writer.producer("ours")
        payloads = [b"p%d" % number for number in range(first, first + count)]
        appended = await producer.append_many(payloads, first, txids=[txid] * count)
        await writer.append(b"else", txid=txid)
        new = payloads[count - len(appended) :]
        sent.extend([(txid, payload) for payload in [*new, b"else"]])
        await writer.close()
        return len(appended)

    assert run(produces(0, 10, 1)) == 10
    reader = follower(name)
    for turn in range(3):
        writer = strict.writer(name)
        sent.append((turn + 2, b"java"))
        writer.write(*sent[-1])
        writer.close()
    assert run(produces(5, 10, 5)) == 5
    assert run(produces(0, 15, 6)) == 0
    assert pairs(reader.take(len(sent))) == sent
    reader.close()
    assert pairs(strict.read(name, len(sent))) == sent
    assert pairs(quire.read(name, len(sent))) == sent


# -- nodes ------------------------------------------------------------------------------------


def nodes(place: Place, path: str, quire: QuireStreams, crashed: int) -> list[tuple[str, str]]:
    """Return all nodes below a path, without what differs between runs.

    That is ledgers, times, and the holder of the lock. A ledger that Quire allocates ahead is
    allocated by Java when it rolls. The number of control records before a crash is also random, so
    the end of that ledger is replaced by END.
    """
    kazoo = place.cluster.kazoo
    found: list[tuple[str, str]] = []

    def walk(node: str) -> None:
        data, stat = kazoo.get(node)
        text = data.decode("latin-1")
        if re.search(r"/(inprogress|logrecs)_", node):
            fields = text.split(";")
            entries = quire.entries(int(fields[1]))
            fields[1] = "LEDGER"
            if len(fields) == 11:
                if int(fields[5]) == crashed:
                    assert int(fields[6]) == len(entries) - 1
                    fields[6:8] = ["END", "END"]
                assert abs(int(fields[4]) - stat.ctime) < 600_000
                fields[4] = "TIME"
            text = ";".join(fields)
        if node.endswith("/allocation"):
            text = "LEDGER"
        name = node.removeprefix(path)
        if "/lock/" in node:
            assert LockMember.parse(node.rpartition("/")[2], b"", 0).client_id == text
            name, text = re.sub(r"member_.*_s[ \d]{10,}_\d{10}$", "MEMBER", name), "CLIENT"
        found.append((name, text))
        for child in sorted(kazoo.get_children(node)):
            walk(f"{node}/{child}")

    walk(path)
    return found


def test_both_sides_write_the_same_nodes_and_entries(place: Place) -> None:
    """Operation for operation. Our writer gives the txids, Java's is given the same."""
    name = new_name()
    path = "/messaging/timed"
    quire = place.quire(path, txids="time")
    apache = place.apache(path)
    ours, theirs = f"{name}-quire", f"{name}-apache"
    quire.create(ours)
    apache.create(theirs)
    batches = [[b"", b"one", bytes(300)], [b"alone"], [b"%d" % n for n in range(50)]]

    def alike(what: str) -> None:
        found = [nodes(place, f"{path}/{stream}", quire, 2) for stream in (theirs, ours)]
        assert found[0] == found[1], what

    def write(end: Callable[[Any], None]) -> None:
        writer = quire.writer(ours, lock=0)
        other = apache.writer(theirs)
        for batch in batches:
            appended = run(writer.aio.append_many(batch))
            txid = writer.aio.last_txid
            positions = other.write_all([(txid, payload) for payload in batch])
            assert list(appended) == positions
            # Skip the control record after it: in both implementations it comes with the
            # acknowledgement.
            for stream in (theirs, ours):
                seen = partial(visible, quire, stream, positions[-1])
                wait_for(seen, f"{stream} is flushed")
        alike("writing")
        for each in (writer, other):
            end(each)
        wait_for(lambda: not members(place, f"{path}/{ours}"), "the lock is free")
        alike("written")

    alike("created")
    write(lambda writer: writer.close())
    write(lambda writer: writer.abandon())
    write(lambda writer: writer.close())
    for side, stream in ((apache, theirs), (quire, ours)):
        side.truncate(stream, DLSN(1, 0, 1))
        side.commit(stream, "who", DLSN(2, 0, 3))
    alike("truncated")
    write(lambda writer: writer.end_stream())
    for one, other in zip(apache.segments(theirs), quire.segments(ours), strict=True):
        assert with_records(quire, one) == with_records(quire, other)


def with_records(quire: QuireStreams, segment: StreamSegment) -> list[bytes]:
    """Return entries up to the last one that has more than a control record.

    At the end of a stream, Java's writer adds one, and ours does not.
    """
    entries = quire.entries(segment.ledger_id)
    while all(flag == RecordFlag.CONTROL for flag in decode_entry(entries[-1], True).flags):
        entries.pop()
    return entries


def visible(quire: QuireStreams, stream: str, position: DLSN) -> bool:
    segment = quire.segments(stream)[-1]
    return len(quire.entries(segment.ledger_id)) > position.entry_id
