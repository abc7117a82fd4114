"""Streams that one side writes and the other reads.

The sides are Apache's DistributedLog and ours, on bookies of either kind.
"""

from __future__ import annotations

import itertools
import random

import pytest

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.record import MAX_PAYLOAD_BYTES
from tests.support.interop.apache_streams import ApacheStreams, bind
from tests.support.interop.quire_streams import QuireStreams, run
from tests.support.interop.stream_place import BY_JAVA, BY_QUIRE, SIDES, Place
from tests.support.interop.stream_sides import Got, Sent, StreamError, Streams, pairs, records
from tests.support.long import long_after
from tests.support.record_envelopes import envelope
from tests.support.waiting import wait_for

pytestmark = pytest.mark.interop

ROLL_BYTES = 1_500
_numbers = itertools.count()


def new_name() -> str:
    return f"stream-{next(_numbers)}"


def check(
    reader: Streams, stream: str, sent: list[Sent], positions: list[DLSN], first: int = 0
) -> list[Got]:
    """The whole stream, record by record."""
    got = reader.read(stream, len(sent))
    assert pairs(got) == sent
    assert [record.position for record in got] == positions
    assert [record.sequence for record in got] == list(range(first, first + len(sent)))
    return got


# -- writing and reading ----------------------------------------------------------------------


@pytest.mark.parametrize("compression", long_after(1, ["none", "lz4"]))
@pytest.mark.parametrize("writing", SIDES)
def test_both_sides_follow_a_stream_over_rolled_segments(
    place: Place, writing: str, compression: str
) -> None:
    """Segments roll by size while both sides follow.

    Then the other side reads from the beginning and from the middle of an entry, and continues
    writing.
    """
    name = new_name()
    one: Streams
    other: Streams
    if writing == "apache":
        one = place.apache(compressionType=compression, maxLogSegmentBytes=ROLL_BYTES)
        other = place.quire()
    else:
        one = place.quire(BY_JAVA)
        one.create(name, compression=compression, roll_bytes=ROLL_BYTES)
        other = place.apache(BY_JAVA, positionGapDetectionEnabled=True)
    sent = records(400)
    writer = one.writer(name)
    positions = [writer.write(*sent[0])]
    followers = [one.reader(name), other.reader(name)]
    for at in range(1, 400, 21):
        positions += writer.write_all(sent[at : at + 21])
    for follower in followers:
        assert pairs(follower.take(400)) == sent
    writer.close()
    segments = other.segments(name)
    assert segments == one.segments(name)
    assert len(segments) >= 3
    assert not any(segment.in_progress for segment in segments)
    check(one, name, sent, positions)
    check(other, name, sent, positions)
    for at in (1, 7, 150, 399):
        assert pairs(other.read(name, 400 - at, positions[at])) == sent[at:]
    writer = other.writer(name)
    sent.append((sent[-1][0], b"the other"))
    positions.append(writer.write(*sent[-1]))
    writer.close()
    for follower in followers:
        assert pairs(follower.take(1)) == sent[-1:]
        follower.close()
    check(one, name, sent, positions)


@pytest.mark.parametrize("writing", SIDES)
def test_records_of_all_sizes_are_exchanged(place: Place, writing: str) -> None:
    """Includes bytes that compression does not make smaller."""
    name = new_name()
    noise = random.Random(1).randbytes(MAX_PAYLOAD_BYTES)
    for compression in ("none", "lz4"):
        one: Streams
        if writing == "apache":
            one = place.apache(compressionType=compression)
            other: Streams = place.quire()
        else:
            one = place.quire(compression=compression)
            other = place.apache()
        name = new_name()
        sizes = (0, 1, 19, 1023, 1024, 65_536, 1_000_000, MAX_PAYLOAD_BYTES, 0, 1)
        sent = [(number, noise[:size]) for number, size in enumerate(sizes)]
        sent.append((len(sizes), bytes(MAX_PAYLOAD_BYTES)))
        writer = one.writer(name)
        positions = [writer.write(*record) for record in sent]
        with pytest.raises(StreamError) as refused:
            writer.write(100, noise + b"1")
        assert refused.value.kind in ("LogRecordTooLongException", "RecordTooLargeError")
        sent.append((101, b"and it goes on"))
        positions.append(writer.write(*sent[-1]))
        writer.close()
        check(other, name, sent, positions)


def test_java_reads_envelopes_as_documented(place: Place) -> None:
    """Keys, headers and event times are bytes of the payload to Java, and plain records are plain.

    Its writer continues the stream, and what it writes is plain, whatever the bytes are.
    """
    ours, java = place.quire(), place.apache()
    name = new_name()

    async def write() -> None:
        async with await ours.aio.open_writer(name, create=True) as writer:
            for at in range(30):
                await writer.append_many(
                    [b"plain", b"v%d" % at], txids=[at, at], keys=[None, b"k%d" % at],
                    headers=[None, {"h": b"\xff"}],
                )  # fmt: skip

    run(write())
    with_key = [envelope(b"v%d" % at, b"k%d" % at, ((b"h", b"\xff"),)) for at in range(30)]
    sent: list[Sent] = [pair for at in range(30) for pair in ((at, b"plain"), (at, with_key[at]))]
    got = java.read(name, len(sent))
    assert pairs(got) == sent
    writer = java.writer(name)
    writer.write(100, with_key[0])
    writer.close()

    async def read() -> list[tuple[bytes | None, bytes]]:
        reader = await ours.aio.open_reader(name, follow=False)
        return [(record.key, record.value) async for record in reader]

    found = run(read())
    assert found[:-1] == [
        pair for at in range(30) for pair in ((None, b"plain"), (b"k%d" % at, b"v%d" % at))
    ]
    assert found[-1] == (None, with_key[0])


@pytest.mark.parametrize("writing", SIDES)
def test_a_lone_record_is_seen_by_the_other_side(place: Place, writing: str) -> None:
    one, other = place.pair(writing)
    name = new_name()
    writer = one.writer(name)
    first = writer.write(1, b"one")
    follower = other.reader(name)
    assert follower.take(1)[0][:3] == (first, 1, b"one")
    for number in range(2, 7):
        position = writer.write(number, b"lone")
        assert follower.take(1)[0][:3] == (position, number, b"lone")
    writer.close()
    follower.close()


def test_records_of_a_java_writer_that_flushes_are_read(place: Place) -> None:
    """The writer uses its default buffer."""
    one = place.apache(
        enableImmediateFlush=False, writerOutputBufferSize=1024,
        periodicFlushFrequencyMilliSeconds=100,
    )  # fmt: skip
    other = place.quire()
    name = new_name()
    sent = records(200)
    writer = one.writer(name)
    positions = writer.write_each(sent[:1])
    follower = other.reader(name)
    positions += writer.write_each(sent[1:])
    got = follower.take(200)
    assert pairs(got) == sent
    assert [record.position for record in got] == positions
    follower.close()
    writer.close()
    check(other, name, sent, positions)


def test_records_of_a_java_writer_that_never_flushes_are_read(place: Place) -> None:
    """Acknowledged records are visible as far as bookies know, and all of them when it closes."""
    one = place.apache(enableImmediateFlush=False)
    other = place.quire()
    name = new_name()
    writer = one.writer(name)
    sent = [(number, b"%d" % number) for number in range(10)]
    positions = [writer.write(*record) for record in sent]
    assert pairs(other.read(name, 9)) == sent[:9]
    follower = other.reader(name)
    assert pairs(follower.take(9)) == sent[:9]
    writer.close()
    assert pairs(follower.take(1)) == sent[9:]
    follower.close()
    check(other, name, sent, positions)


@pytest.mark.parametrize("compression", long_after(1, ["NONE", "LZ4"]))
def test_record_sets_of_java_are_expanded(place: Place, compression: str) -> None:
    """Many records that Java packs into one: each is read, and positions count them."""
    one, other = place.apache(compressionType=compression.lower()), place.quire()
    name = new_name()
    writer = one.writer(name)
    sent: list[Sent] = []
    positions: list[DLSN] = []
    for number in range(0, 30, 3):
        payloads = [b"%d" % n * 10 for n in range(number)]
        if payloads:
            first = writer.write_set(number, payloads, compression)
            positions += [first._replace(slot_id=first.slot_id + at) for at in range(number)]
            sent += [(number, payload) for payload in payloads]
        sent.append((number, b"alone"))
        positions.append(writer.write(*sent[-1]))
    assert pairs(other.read(name, len(sent))) == sent
    writer.close()
    got = check(other, name, sent, positions)
    assert got == one.read(name, len(sent))
    for at in (1, 5, 40, len(sent) - 1):
        assert pairs(other.read(name, len(sent) - at, positions[at])) == sent[at:]
    [segment] = other.segments(name)
    assert segment.record_count == len(sent)


@pytest.mark.parametrize("writing", SIDES)
def test_the_end_of_a_stream_is_seen_by_the_other_side(place: Place, writing: str) -> None:
    one, other = place.pair(writing)
    name, empty = new_name(), new_name()
    writer = one.writer(name)
    sent = records(10)
    writer.write_all(sent)
    follower = other.reader(name)
    assert pairs(follower.take(10)) == sent
    writer.end_stream()
    one.writer(empty).end_stream()
    assert follower.take(1) == []
    assert follower.ended
    follower.close()
    for reader in (one, other):
        assert reader.segments(name) == one.segments(name)
        again = reader.reader(name)
        assert pairs(again.take(11)) == sent
        assert again.ended
        again.close()
        with pytest.raises(StreamError) as refused:
            reader.writer(name).write(100, b"late")
        assert refused.value.kind in ("EndOfStreamException", "StreamEndedError")
        again = reader.reader(empty)
        assert again.take(1) == []
        assert again.ended
        again.close()


# -- positions --------------------------------------------------------------------------------


@pytest.mark.parametrize("writing", SIDES)
def test_both_sides_find_the_same_position_of_a_txid(place: Place, writing: str) -> None:
    """Both find the same: txids that repeat within entries and across segments, and that leave
    some out."""
    name = new_name()
    one, other = place.pair(writing)
    txids = [1, 1, 1, 4, 4, 10, 10, 10, 10, 10, 11, 20, 20, 20, 25, 30, 30]
    sent = [(txid, b"%d" % at) for at, txid in enumerate(txids)]
    for first in range(0, len(sent), 5):
        writer = one.writer(name)
        for at in range(first, min(first + 5, len(sent)), 2):
            writer.write_all(sent[at : min(at + 2, first + 5)])
        writer.close()
    assert len(other.segments(name)) == 4
    for txid in range(32):
        wanted = [record for record in sent if record[0] >= txid]
        positions = {side.name: side.find_txid(name, txid) for side in (one, other)}
        for position in positions.values():
            assert pairs(one.read(name, len(wanted), position)) == wanted
        assert pairs(other.read(name, len(wanted), txid)) == wanted
        if writing == "apache" and txid:
            # In our segments, Java may find a control record before the record.
            assert positions["apache"] == positions["quire"]


@pytest.mark.parametrize("writing", SIDES)
def test_subscriptions_are_shared_by_both_sides(place: Place, writing: str) -> None:
    one, other = place.pair(writing)
    name = new_name()
    writer = one.writer(name)
    positions = writer.write_all(records(10))
    writer.close()
    one.commit(name, "reports", positions[3])
    assert other.committed(name, "reports") == positions[3]
    other.commit(name, "reports", positions[7])
    assert other.committed(name, "reports") == positions[7]
    assert place.quire(path_of(other)).committed(name, "reports") == positions[7]
    apache = place.apache(path_of(other))
    assert apache.committed(name, "reports") == positions[7]
    reader = apache.subscribed(name, "reports")
    assert [record.position for record in reader.take(3)] == positions[7:]
    new = new_name()
    other_quire = place.quire(path_of(other))
    other_quire.rename(name, new)  # the lock of that reader is not taken along
    reader.close()
    reader = apache.subscribed(new, "reports")
    assert [record.position for record in reader.take(3)] == positions[7:]
    reader.close()


def path_of(side: Streams) -> str:
    return BY_QUIRE if side.name == "quire" else BY_JAVA


# -- giving up the beginning ------------------------------------------------------------------


@pytest.mark.parametrize("truncating", long_after(1, SIDES))
@pytest.mark.parametrize("writing", SIDES)
def test_truncations_are_seen_by_the_other_side(
    place: Place, writing: str, truncating: str
) -> None:
    """Truncate in the middle of a segment's entry, then whole segments."""
    one, other = place.pair(writing)
    name = new_name()
    sent = records(60)
    positions: list[DLSN] = []
    for first in range(0, 60, 20):
        writer = one.writer(name)
        positions += writer.write_all(sent[first : first + 20])
        writer.close()
    by = one if one.name == truncating else other
    for at in (5, 27):
        by.truncate(name, positions[at])
        assert one.segments(name) == other.segments(name)
        java, ours = (one, other) if one.name == "apache" else (other, one)
        assert pairs(ours.read(name, 60 - at)) == sent[at:]
        # Java's reader begins with the entry where it was asked for less.
        start = 20 * (at // 20)
        got = java.read(name, 60 - start)
        assert pairs(got)[-(60 - at) :] == sent[at:]
        assert got[-1].sequence == 59


@pytest.mark.parametrize("writing", SIDES)
def test_deleted_segments_are_no_gap_for_the_other_side(place: Place, writing: str) -> None:
    """Segments that one side has deleted are no hole for the other."""
    one, other = place.pair(writing)
    name = new_name()
    sent = records(60)
    positions: list[DLSN] = []
    for first in range(0, 60, 20):
        writer = one.writer(name)
        positions += writer.write_all(sent[first : first + 20])
        writer.close()
    if isinstance(one, ApacheStreams):
        one.purge(name, sent[40][0])
        wait_for(lambda: len(other.segments(name)) == 1, "Java has purged two segments")
    else:
        one.truncate(name, positions[40])
    # Quire keeps the node of the newest that went, for readers that have read it to its end.
    left = [3] if isinstance(one, ApacheStreams) else [2, 3]
    assert [segment.lssn for segment in other.segments(name)] == left
    for reader in (one, other):
        assert pairs(reader.read(name, len(sent) - 40)) == sent[40:]
        writer = reader.writer(name)
        sent.append((1000, reader.name.encode()))
        positions.append(writer.write(*sent[-1]))
        writer.close()
        got = other.read(name, len(sent) - 40)
        assert pairs(got) == sent[40:]
        assert got[0].sequence == 40


def test_segments_with_former_names_are_read_truncated_and_deleted(place: Place) -> None:
    """`inprogress_TXID` and `logrecs_TXID_TXID`: taken over, truncated, deleted."""
    apache, quire_ = place.apache(logSegmentNameVersion=0), place.quire()
    name = new_name()
    path = f"{BY_QUIRE}/{name}/<default>/ledgers"

    def nodes() -> list[str]:
        return sorted(place.cluster.kazoo.get_children(path))

    sent = records(40)
    for first in range(0, 40, 10):
        writer = apache.writer(name)
        writer.write_all(sent[first : first + 10])
        if first < 30:
            writer.close()
        else:
            writer.abandon()
    former = nodes()
    assert [each.count("_") for each in former] == [1, 2, 2, 2]
    assert pairs(quire_.read(name, 40)) == sent
    quire_.writer(name).close()
    assert sorted([*former[1:], "logrecs_000000000000000004"]) == nodes()
    # (Java's reader begins with the whole entry.)
    for before, left, java_left in (
        (DLSN(1, 0, 5), 35, 40), (DLSN(2, 0, 0), 30, 30), (DLSN(3, 0, 1), 19, 20),
    ):  # fmt: skip
        quire_.truncate(name, before)
        assert pairs(quire_.read(name, left)) == sent[-left:]
        assert pairs(place.apache().read(name, java_left)) == sent[-java_left:]
    # The node of the newest that went stays, without its ledger.
    assert nodes() == [f"logrecs_{number:018d}" for number in (2, 3, 4)]


# -- namespaces -------------------------------------------------------------------------------


@pytest.mark.parametrize("making", SIDES)
def test_streams_are_created_listed_renamed_and_deleted_by_either_side(
    place: Place, making: str
) -> None:
    """Created, listed, renamed and deleted by either; ledgers go with their streams."""
    path = f"/messaging/names-{making}"
    if making == "apache":
        bind(place.uri(path), place.cluster.zookeeper)
    quire_, apache = place.quire(path), place.apache(path)
    one, other = (apache, quire_) if making == "apache" else (quire_, apache)
    for name in ("plain", "a name to be", "many/levels/deep", "\u00fcber"):
        if " " in name:
            with pytest.raises(StreamError):
                one.create(name)
            continue
        one.create(name)
        writer = other.writer(name)
        writer.write(1, name.encode())
        writer.close()
        assert pairs(one.read(name, 1)) == [(1, name.encode())]
    assert quire_.names() == ["many/levels/deep", "plain", "\u00fcber"]
    assert apache.names() == ["many", "plain", "\u00fcber"]
    one.rename("plain", "moved")
    assert pairs(other.read("moved", 1)) == [(1, b"plain")]
    other.rename("moved", "on/and on".replace(" ", "-"))
    assert pairs(one.read("on/and-on", 1)) == [(1, b"plain")]
    quire_.create("set", roll_bytes=1_000)
    with pytest.raises(StreamError) as refused:
        apache.rename("set", "set-again")  # below it is a node that Java does not know
    assert refused.value.kind == "LockingException"
    quire_.rename("set", "set-again")
    quire_.delete("set-again")
    ledgers = [segment.ledger_id for segment in one.segments("on/and-on")]
    other.delete("on/and-on")
    wait_for(lambda: "on/and-on" not in quire_.names(), "the stream is deleted")
    assert set(ledgers).isdisjoint(quire_.ledgers())


def test_both_sides_write_the_same_namespace_binding(place: Place) -> None:
    kazoo = place.cluster.kazoo
    assert kazoo.get(BY_JAVA)[0] == kazoo.get(BY_QUIRE)[0]


def test_an_unsupported_namespace_binding_is_refused(place: Place) -> None:
    """A binding to something else is refused, and not taken for an empty namespace."""
    for path, ledgers, federated in (
        ("/messaging/federated", "/ledgers", True),
        ("/messaging/elsewhere", "/others/ledgers", False),
    ):
        bind(place.uri(path), place.cluster.zookeeper, ledgers, federated)
        with pytest.raises(StreamError, match=r"federated|/others/ledgers") as refused:
            QuireStreams.open(place.cluster.uri, path)
        assert refused.value.kind == "UsageError"


def test_a_stream_with_a_password_is_read_by_the_other_side(place: Place) -> None:
    apache, quire_ = place.apache(digestPw="secret"), place.quire(password=b"secret")
    for writing, reading in ((apache, quire_), (quire_, apache)):
        name = new_name()
        writer = writing.writer(name)
        position = writer.write(1, b"x")
        writer.close()
        assert reading.read(name, 1) == [Got(position, 1, b"x", 0)]
        with pytest.raises(StreamError, match="UnauthorizedError"):
            place.quire().read(name, 1)
        reading.writer(name).close()


@pytest.mark.parametrize("deleting", SIDES)
def test_readers_of_both_sides_end_when_the_stream_is_deleted(place: Place, deleting: str) -> None:
    one = place.side(deleting)
    name = new_name()
    writer = one.writer(name)
    writer.write(1, b"x")
    writer.close()
    followers = [place.side(side).reader(name) for side in SIDES]
    for follower in followers:
        assert len(follower.take(1)) == 1
    one.delete(name)
    for follower in followers:
        with pytest.raises(StreamError) as gone:
            follower.take(1)
        assert gone.value.kind in ("LogNotFoundException", "NoSuchStreamError")
        follower.close()


def test_a_binding_applies_to_the_paths_below_it(place: Place) -> None:
    """A namespace is found through a binding above it, as in Java."""
    below = f"{BY_JAVA}/team/orders"
    place.cluster.kazoo.ensure_path(below)  # Java needs it to be there
    quire_, apache = QuireStreams.open(place.cluster.uri, below), place.apache(below)
    place.opened.append(quire_)
    writer = apache.writer("s")
    position = writer.write(1, b"x")
    writer.close()
    assert quire_.read("s", 1) == [Got(position, 1, b"x", 0)]
    assert quire_.names() == ["s"]
