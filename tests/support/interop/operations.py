"""The list of operations that every client must pass on every kind of bookie.

Each operation gets two clients of the same cluster: `one`, which is tested, and `other`, of the
other project, which must see the same. Every payload is compared byte for byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.support.interop.checks import (
    Pair,
    Stream,
    check_closed,
    refused,
    tailed,
    wait_confirmed,
)
from tests.support.interop.sides import (
    DIGESTS,
    NO_ENTRY,
    PLAIN,
    STRIPED,
    AdvWriter,
    Code,
    Feature,
    Shape,
    payloads,
)

Operation = Callable[[Pair], None]
NEEDS: dict[Operation, Feature] = {}
"""The optional feature that an operation needs. Operations that need none are not included."""


def needs(feature: Feature) -> Callable[[Operation], Operation]:
    def mark(operation: Operation) -> Operation:
        NEEDS[operation] = feature
        return operation

    return mark


def possible(features: frozenset[Feature], operations: Sequence[Operation]) -> list[Operation]:
    return [one for one in operations if one not in NEEDS or NEEDS[one] in features]


# -- writing and reading ----------------------------------------------------------------------


def write_and_read(pair: Pair, shape: Shape = PLAIN) -> None:
    sent = payloads(300)
    custom = {"made by": pair.one.name.encode(), "all bytes": bytes(range(256))}
    writer = pair.one.create(shape, custom=custom)
    assert writer.append_all(sent[:-1]) == list(range(299))
    assert writer.append(sent[-1]) == 299
    assert writer.last_add_confirmed == 299
    writer.close()
    described = check_closed(pair.both, writer.ledger_id, sent, shape)
    assert described.custom == custom
    assert list(described.segments) == [0]
    assert len(set(described.segments[0])) == shape.ensemble


SIZES = (0, 1, 0, 1023, 1024, 1025, 16_383, 16_384, 16_385, 65_535, 65_536, 1 << 20, 3 << 20, 0)
"""Payload sizes. Apache's client puts a payload of 16,384 bytes or more in a separate buffer."""


def entries_of_many_sizes(pair: Pair) -> None:
    sent = [bytes([number]) * size for number, size in enumerate(SIZES)]
    for shape in (PLAIN, STRIPED):
        writer = pair.one.create(shape)
        assert writer.append_all(sent) == list(range(len(sent)))
        writer.close()
        check_closed(pair.both, writer.ledger_id, sent, shape)


def empty_payloads(pair: Pair) -> None:
    sent = [b""] * 20
    for digest in DIGESTS:
        shape = Shape(digest=digest)
        writer = pair.one.create(shape)
        writer.append_all(sent)
        writer.close()
        check_closed(pair.both, writer.ledger_id, sent, shape)


def empty_ledger(pair: Pair) -> None:
    for recover in (False, True):
        writer = pair.one.create()
        if recover:
            writer.abandon()
            pair.other.open(writer.ledger_id, recover=True).close()
        else:
            writer.close()
        described = check_closed(pair.both, writer.ledger_id, [], PLAIN)
        assert (described.last_entry_id, described.length) == (NO_ENTRY, 0)


def empty_password(pair: Pair) -> None:
    shape = Shape(password=b"", digest="MAC")
    sent = payloads(10)
    writer = pair.one.create(shape)
    writer.append_all(sent)
    writer.abandon()
    pair.other.open(writer.ledger_id, recover=True, password=b"", digest="MAC").close()
    check_closed(pair.both, writer.ledger_id, sent, shape)


def many_ledgers_at_once(pair: Pair) -> None:
    sent = payloads(40)
    writers = [pair.one.create(Shape(ensemble=3 - at % 3, write_quorum=1, ack_quorum=1))
               for at in range(15)]  # fmt: skip
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda writer: writer.append_all(sent), writers))
    assert done == [list(range(40))] * 15
    for writer in writers:
        writer.close()
        reader = pair.other.open(writer.ledger_id)
        assert reader.read(0, 39) == sent
        reader.close()


def read_while_open(pair: Pair) -> None:
    """Readers of an open ledger see what is known to be acknowledged, and do not fence it."""
    sent = payloads(40)
    for first, second in pair.turns:
        writer = first.create()
        for payload in sent[:20]:
            writer.append(payload)
        reader = second.open(writer.ledger_id)
        assert not reader.closed
        # The acknowledgement of the last entry travels with the next entry.
        assert reader.last_add_confirmed in {18, 19}
        assert reader.read(0, 18) == sent[:19]
        for payload in sent[20:]:
            writer.append(payload)
        assert reader.refresh() in {38, 39}
        assert reader.read(15, 38) == sent[15:39]
        writer.close()
        wait_confirmed(reader, 39)
        assert reader.read(0, 39) == sent
        reader.close()


@needs(Feature.UNCONFIRMED_READ)
def read_unconfirmed(pair: Pair) -> None:
    writer = pair.other.create()
    sent = payloads(5)
    for payload in sent:
        writer.append(payload)
    reader = pair.one.open(writer.ledger_id)
    assert reader.read_unconfirmed(0, 4) == sent
    refused(lambda: reader.read_unconfirmed(5, 5), Code.NO_SUCH_ENTRY)
    writer.close()
    reader.close()


# -- tailing ----------------------------------------------------------------------------------


@needs(Feature.LONG_POLL)
def tail(pair: Pair) -> None:
    """A tailing reader receives each entry, and the last one when the writer closes the ledger."""
    sent = payloads(60)
    for writing in pair.both:
        writer = writing.create()
        reader = pair.one.open(writer.ledger_id)
        with ThreadPoolExecutor(1) as thread:
            writer.append(sent[0])
            for number in range(1, len(sent)):
                waiting = thread.submit(tailed, reader, number - 1)
                assert writer.append(sent[number]) == number
                assert waiting.result() == sent[number - 1]
            waiting = thread.submit(tailed, reader, len(sent) - 1)
            writer.close()
            assert waiting.result() == sent[-1]
        reader.close()


@needs(Feature.LONG_POLL)
def tail_nothing(pair: Pair) -> None:
    """A long poll that finds nothing new ends at its timeout without an error."""
    writer = pair.other.create()
    writer.append(b"first")
    reader = pair.one.open(writer.ledger_id)
    assert reader.tail(1, 300) is None
    writer.append(b"second")
    writer.append(b"third")
    assert tailed(reader, 1) == b"second"
    writer.close()
    reader.close()


@needs(Feature.EXPLICIT_LAC)
def explicit_lac(pair: Pair) -> None:
    """A writer that pauses reports its last entry without appending another one."""
    sent = payloads(5)
    writing = pair.one_with_explicit_lac()
    writer = writing.create()
    for payload in sent:
        writer.append(payload)
    asking = [client for client in pair.both if Feature.LONG_POLL in client.features]
    assert asking
    for client in asking:
        reader = client.open(writer.ledger_id)
        wait_confirmed(reader, 4)
        assert reader.read(0, 4) == sent
        reader.close()
    assert not pair.one.describe(writer.ledger_id).closed
    writer.close()
    check_closed(pair.both, writer.ledger_id, sent, PLAIN)
    writing.close()


# -- fencing and recovery ---------------------------------------------------------------------


def fence(pair: Pair) -> None:
    sent = payloads(50)
    for first, second in pair.turns:
        writer = first.create()
        writer.append_all(sent)
        reader = second.open(writer.ledger_id, recover=True)
        assert reader.closed
        assert reader.last_add_confirmed == 49
        for late in (b"too late", b"and again"):
            refused(partial(writer.append, late), Code.LEDGER_FENCED, Code.LEDGER_CLOSED)
        assert reader.read(0, 49) == sent
        reader.close()
        check_closed(pair.both, writer.ledger_id, sent, PLAIN)


def fence_under_load(pair: Pair, shape: Shape = PLAIN) -> None:
    """Every acknowledged entry is in the ledger, no matter when the recovery fences the writer."""
    for first, second in pair.turns:
        stream = Stream(first.create(shape))
        stream.reaches(100)
        reader = second.open(stream.writer.ledger_id, recover=True)
        assert stream.ends().code in {Code.LEDGER_FENCED, Code.LEDGER_CLOSED}
        last = reader.last_add_confirmed
        assert stream.acknowledged - 1 <= last < stream.acknowledged + Stream.BATCH, (
            first.name,
            second.name,
        )
        sent = Stream.sent(last + 1)
        assert reader.read(0, last) == sent
        reader.close()
        check_closed(pair.both, stream.writer.ledger_id, sent, shape, closed_by=second)


def recover(pair: Pair, shape: Shape = PLAIN) -> None:
    sent = payloads(200)
    for first, second in pair.turns:
        writer = first.create(shape)
        writer.append_all(sent)
        writer.abandon()
        assert pair.one.describe(writer.ledger_id).state == "OPEN"
        for _ in range(2):  # The second time it is closed already.
            reader = second.open(
                writer.ledger_id, recover=True, password=shape.password, digest=shape.digest
            )
            assert reader.read(0, 199) == sent
            reader.close()
        check_closed(pair.both, writer.ledger_id, sent, shape)


def wrong_password(pair: Pair) -> None:
    """A client with a wrong password can neither open nor fence a ledger."""
    sent = payloads(3)
    for first, second in pair.turns:
        writer = first.create()
        writer.append(sent[0])
        for recover in (False, True):
            guess = partial(second.open, writer.ledger_id, recover=recover, password=b"guess")
            refused(guess, Code.UNAUTHORIZED)
        writer.append_all(sent[1:])
        writer.close()
        check_closed(pair.both, writer.ledger_id, sent, PLAIN)


def delete(pair: Pair) -> None:
    for first, second in pair.turns:
        kept, gone = first.create(), first.create()
        for writer in (kept, gone):
            writer.append(b"payload")
            writer.close()
        second.delete(gone.ledger_id)
        for client in pair.both:
            for recover in (False, True):
                look = partial(client.open, gone.ledger_id, recover=recover)
                refused(look, Code.NO_SUCH_LEDGER)
        second.delete(gone.ledger_id)  # Deleting it again is not an error.
        check_closed(pair.both, kept.ledger_id, [b"payload"], PLAIN)


# -- limits -----------------------------------------------------------------------------------


def largest_entry(pair: Pair) -> None:
    """The largest payload can be written and read by both clients.

    A writer refuses a payload that is one byte larger.
    """
    for digest in DIGESTS:
        # Use all bookies: with a spare one, Apache's writer would replace bookies forever.
        shape = Shape(4, 4, 3, digest)
        stream = Stream(pair.other.create())
        writer = pair.one.create(shape)
        sent = [bytes(pair.one.largest_payload(writer.ledger_id, shape)), b"small"]
        assert [writer.append(payload) for payload in sent] == [0, 1]
        writer.close()
        check_closed([pair.one], writer.ledger_id, sent, shape)
        writer = pair.one.create(shape)
        too_large = bytes(pair.one.largest_payload(writer.ledger_id, shape) + 1)
        refusals = Code.NOT_ENOUGH_BOOKIES, Code.INCORRECT_PARAMETER
        refused(partial(writer.append, too_large), *refusals)
        writer.abandon()
        pair.other.open(writer.ledger_id, recover=True, digest=digest).close()
        assert pair.other.describe(writer.ledger_id).last_entry_id == NO_ENTRY
        stream.goes_on(Stream.BATCH)
        assert stream.stop() > 0
        stream.writer.close()
        assert list(pair.one.describe(stream.writer.ledger_id).segments) == [0]


# -- ids of the caller, deferred sync ---------------------------------------------------------


def adv_writer(pair: Pair, shape: Shape = PLAIN) -> None:
    """Entries with ids of the caller may be written in any order, and are acknowledged by id."""
    sent = payloads(50)
    order = [number ^ 3 for number in range(48)] + [49, 48]
    writer = pair.one.create_adv(shape)
    assert writer.write_all([(number, sent[number]) for number in order]) == order
    assert writer.last_add_confirmed == 49
    writer.close()
    check_closed(pair.both, writer.ledger_id, sent, shape)


def adv_writer_refuses(pair: Pair) -> None:
    """A writer refuses an id that was used before, and its close refuses ids above a gap."""
    writer = pair.one.create_adv()
    held = writer.begin(2, b"two")
    taken = Code.DUPLICATE_ENTRY, Code.INCORRECT_PARAMETER
    refused(partial(writer.write, 2, b"two again"), *taken)
    assert writer.write_all([(1, b"one"), (0, b"nil")]) == [1, 0]
    assert held() == 2
    refused(partial(writer.write, 1, b"one again"), *taken)
    above = writer.begin(4, b"four")
    writer.close()
    refused(above, Code.LEDGER_CLOSED)
    for client in pair.both:
        assert client.describe(writer.ledger_id).last_entry_id == 2
        reader = client.open(writer.ledger_id)
        assert reader.read(0, 2) == [b"nil", b"one", b"two"]
        reader.close()


LEDGER_IDS = itertools.count(7_000_000_001)
"""Ledger ids that need more than 32 bits, for ledgers whose id the caller chooses.

Other ledgers get ids from 0 on.
"""


def adv_ledger_id(pair: Pair) -> None:
    chosen = next(LEDGER_IDS)
    writer: AdvWriter = pair.one.create_adv(ledger_id=chosen)
    assert writer.ledger_id == chosen
    writer.write(0, b"nil")
    for client in pair.both:
        refused(partial(client.create_adv, ledger_id=chosen), Code.LEDGER_EXISTS)
    writer.close()
    check_closed(pair.both, chosen, [b"nil"], PLAIN)


def adv_recover(pair: Pair) -> None:
    """Recovery of a ledger whose caller chooses the entry ids ends the ledger at the first gap."""
    writer = pair.one.create_adv()
    writer.write_all([(1, b"one"), (0, b"nil")])
    writer.begin(3, b"three")
    pair.other.open(writer.ledger_id, recover=True).close()
    writer.abandon()
    for client in pair.both:
        # The length is that of entry 1, which was written first.
        assert client.describe(writer.ledger_id).last_entry_id == 1
        reader = client.open(writer.ledger_id)
        assert reader.closed
        assert reader.read(0, 1) == [b"nil", b"one"]
        reader.close()


@needs(Feature.DEFERRED_SYNC)
def deferred_sync(pair: Pair) -> None:
    """Entries with deferred sync are confirmed only by a force.

    Closing the ledger cuts off unforced entries with Apache's client, and forces them with Quire's.
    """
    sent = payloads(30)
    writer = pair.one.create(deferred_sync=True)
    writer.force()  # There is nothing to force.
    assert writer.append_all(sent[:10]) == list(range(10))
    assert writer.last_add_confirmed == NO_ENTRY
    writer.force()
    assert writer.last_add_confirmed == 9
    assert writer.append_all(sent[10:20]) == list(range(10, 20))
    assert writer.last_add_confirmed == 9
    writer.force()
    assert writer.last_add_confirmed == 19
    assert writer.append_all(sent[20:]) == list(range(20, 30))
    writer.close()
    last = 19 if pair.one.close_cuts else 29
    for client in pair.both:
        described = client.describe(writer.ledger_id)
        assert (described.state, described.last_entry_id) == ("CLOSED", last)
        reader = client.open(writer.ledger_id)
        assert reader.last_add_confirmed == last
        assert reader.read(0, last) == sent[: last + 1]
        reader.close()


@needs(Feature.DEFERRED_SYNC)
def deferred_sync_recovered(pair: Pair) -> None:
    """Recovery keeps all entries with deferred sync if no bookie has crashed."""
    sent = payloads(30)
    writer = pair.one.create(deferred_sync=True)
    writer.append_all(sent[:20])
    writer.force()
    writer.append_all(sent[20:])
    reader = pair.other.open(writer.ledger_id, recover=True)
    assert reader.read(0, 29) == sent
    reader.close()
    check_closed(pair.both, writer.ledger_id, sent, PLAIN)


# -- the list ---------------------------------------------------------------------------------

ESSENTIAL = (
    write_and_read, entries_of_many_sizes, empty_ledger, read_while_open, tail, explicit_lac,
    fence, recover, delete, largest_entry, adv_writer, deferred_sync,
)  # fmt: skip
THOROUGH = (
    empty_payloads, empty_password, many_ledgers_at_once, read_unconfirmed,
    tail_nothing, fence_under_load, wrong_password, adv_writer_refuses, adv_ledger_id, adv_recover,
    deferred_sync_recovered,
)  # fmt: skip
SHAPES = tuple(
    Shape(*quorums, digest=digest)
    for digest in DIGESTS
    for quorums in ((3, 3, 2), (3, 2, 2), (4, 3, 2), (1, 1, 1), (2, 2, 1), (3, 3, 3))
)
OF_ANY_SHAPE = (write_and_read, recover, fence_under_load, adv_writer)
