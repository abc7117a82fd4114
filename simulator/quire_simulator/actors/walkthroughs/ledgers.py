"""Walkthroughs of ledgers: writing, reading, taking over, and losing a bookie."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate

from quire.client import LedgerReader
from quire.client.write.caller_ids import CallerIdWriter
from quire.client.write.writer import LedgerWriter, WriteHandle
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.errors import (
    EntryExistsError,
    LedgerClosedError,
    LedgerExistsError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
    UsageError,
)
from quire_simulator.actors.walkthroughs.walk import Bounds, Walk
from quire_simulator.world.world import bookie_id

DIGESTS = ("crc32c", "crc32", "hmac", "dummy")
SCALES = (1, 1, 40)
"""The factors by which payloads are larger. The largest make several windows of a reader."""
STEPS = 6
"""The number of times that a walkthrough appends some entries."""
STEP_ENTRIES_MAX = 30
SOON_S = 3.0
"""Seconds within which a quiet cluster has passed on what a writer has appended."""
ARRIVED_S = 1.0
"""Seconds after which every member of a write set has an entry, not only an ack quorum."""
CALLS_OF_A_CHANGE = 10
"""The largest number of calls of the metadata store while a lost bookie is replaced."""
ENTRY_BYTES_MOST = 100
"""The most bytes of an entry and its frame besides the payload."""
ANSWER_BYTES_MOST = 60
"""The most bytes of the answer to an add."""
COUNTERS = ("adds", "add_bytes", "add_batches", "ensemble_changes", "bookie_failures")


@dataclass
class Written:
    """A ledger that a walkthrough writes, and what it has written."""

    handle: WriteHandle
    shape: tuple[int, int, int]
    digest: str
    password: bytes
    custom: dict[str, bytes]
    payloads: list[bytes] = field(default_factory=list)

    @property
    def ledger_id(self) -> int:
        return self.handle.ledger_id

    @property
    def last(self) -> int:
        return len(self.payloads) - 1

    @property
    def lengths(self) -> list[int]:
        return list(accumulate(map(len, self.payloads)))

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.payloads))


async def create(
    walk: Walk, *, caller_ids: bool = False, spare: int = 0, copies: int = 1
) -> Written:
    """Create a ledger of any shape, and check the reports.

    It leaves `spare` bookies out, and its write quorum is at least `copies`.
    """
    chance, client, world = walk.chance, walk.client, walk.stage.world
    bookies = await client.bookies()
    registered = world.cluster.presences
    walk.same("the list of writable bookies", sorted(bookies.writable),
              sorted(one for one, it in registered.items() if not it.readonly))  # fmt: skip
    walk.same("the list of read-only bookies", sorted(bookies.readonly),
              sorted(one for one, it in registered.items() if it.readonly))  # fmt: skip
    ensemble = chance.randint(copies, max(copies, min(5, len(bookies.writable) - spare)))
    write_quorum = chance.randint(copies, ensemble)
    shape = ensemble, write_quorum, chance.randint(1, write_quorum)
    digest, password = chance.choice(DIGESTS), chance.choice([b"", b"secret"])
    custom = chance.choice([{}, {"of": walk.name.encode(), "empty": b""}])
    with walk.costs("the creation of a ledger", client, calls=3):
        handle = await client.create_ledger(
            ensemble_size=ensemble, write_quorum=write_quorum, ack_quorum=shape[2],
            digest=digest, password=password, custom=custom, caller_ids=caller_ids,
        )  # fmt: skip
    facts = walk.stage.checker.facts(handle.ledger_id)
    facts.password, facts.scale = password, chance.choice(SCALES)
    facts.handle_confirmed = lambda: handle.last_add_confirmed
    written = Written(handle, shape, digest, password, custom)
    _check_metadata(walk, written, closed=False)
    walk.same("the custom metadata of a new ledger", dict(handle.custom), custom)
    walk.same("the last entry of a new ledger", handle.last_add_confirmed, -1)
    walk.same("the length of a new ledger", handle.length, 0)
    taken = client.create_ledger(
        ensemble_size=1, write_quorum=1, ack_quorum=1, ledger_id=handle.ledger_id
    )
    await walk.refused("a creation with an id that exists", taken, LedgerExistsError,
                       handle.ledger_id)  # fmt: skip
    return written


def _check_metadata(walk: Walk, written: Written, *, closed: bool) -> None:
    """Compare what the handle says of its ledger with what was asked for."""
    found = written.handle.metadata
    stored = walk.stage.world.cluster.ledger(written.ledger_id).value
    if closed:
        walk.same("the metadata of a closed ledger", found, stored)
        walk.same("the state of a closed ledger", found.state, LedgerState.CLOSED)
        walk.same("the last entry in the metadata", found.last_entry_id, written.last)
        walk.same("the length in the metadata", found.length, written.size_bytes)
    shape = stored.ensemble_size, stored.write_quorum, stored.ack_quorum
    walk.same("the shape of a ledger", shape, written.shape)
    walk.same("the custom metadata of a ledger", dict(stored.custom), written.custom)
    walk.same("the digest of a ledger", stored.digest and stored.digest.name.lower(),
              written.digest)  # fmt: skip
    walk.same("the size of the ensemble", len(stored.segments[0].ensemble), shape[0])
    if stored.password is not None:
        walk.same("the password of a ledger", stored.password, written.password)


async def append(walk: Walk, written: Written, counted: dict[str, int], *, calls: int = 0) -> None:
    """Append some entries in one of the ways there are, and check all that is said of them.

    `calls` is the largest number of calls of the metadata store.
    """
    chance, handle, client = walk.chance, written.handle, walk.client
    first, count = written.last + 1, chance.randint(1, STEP_ENTRIES_MAX)
    payloads = [walk.stage.payload(written.ledger_id, first + k) for k in range(count)]
    written.payloads += payloads
    batches = 1
    # Each of them may wait for the slowest disk and the slowest way.
    seconds = 5.0 + 0.3 * count

    def bounds() -> Bounds:
        # Each entry is sent to its write set and answered by it. Acknowledgements of the appends
        # before may still be on their way.
        quorum, size = written.shape[1], sum(map(len, payloads))
        arriving = 2 * STEP_ENTRIES_MAX
        return Bounds(quorum * (size + count * ENTRY_BYTES_MOST), quorum * count,
                      quorum * (count + arriving) * ANSWER_BYTES_MOST)  # fmt: skip

    with (
        walk.costs(f"{count} appends", client, calls=calls, seconds=seconds),
        # A bookie that replaces another one is sent everything again.
        nullcontext() if calls else walk.traffic(f"{count} appends", client, bounds),
    ):
        if isinstance(handle, CallerIdWriter):
            await _append_at(walk, handle, first, payloads)
            batches = count
        elif isinstance(handle, LedgerWriter):
            batches = await _append_plain(walk, handle, first, payloads)
    walk.same("last_add_pushed", handle.last_add_pushed, written.last)
    walk.same("last_add_confirmed", handle.last_add_confirmed, written.last)
    walk.same("the length of a ledger", handle.length, written.size_bytes)
    walk.stage.history.add(walk.name, "acked", written.ledger_id, first, written.last)
    counted["adds"] += count
    counted["add_bytes"] += sum(map(len, payloads))
    counted["most batches"] += batches + counted["add_bytes"] // client.config.max_turn_bytes


async def _append_plain(
    walk: Walk, handle: LedgerWriter, first: int, payloads: Sequence[bytes]
) -> int:
    """Append the payloads, and return the largest number of batches that they may form."""
    last = first + len(payloads) - 1
    way = walk.chance.choice(["append", "together", "many", "submit", "submit many"])
    if way == "append":
        for number, payload in enumerate(payloads, first):
            walk.same("the id of an append", await handle.append(payload), number)
        return len(payloads)
    if way == "together":
        ids = await asyncio.gather(*(handle.append(payload) for payload in payloads))
        walk.same("the ids of concurrent appends", list(ids), list(range(first, last + 1)))
        return len(payloads)
    if way == "many":
        walk.same("the last of many appends", await handle.append_many(payloads), last)
    elif way == "submit":
        for number, payload in enumerate(payloads, first):
            walk.same("the id of a submitted entry", handle.submit(payload), number)
        walk.same("the result of flush", await handle.flush(), last)
    else:
        walk.same("the last of submitted entries", await handle.submit_many(payloads), last)
        walk.same("the result of wait", await handle.wait(last), last)
    # Entries that are handed over one by one may be sent as soon as some of them are there.
    return len(payloads)


async def _append_at(
    walk: Walk, handle: CallerIdWriter, first: int, payloads: Sequence[bytes]
) -> None:
    ids = list(range(first, first + len(payloads)))
    walk.chance.shuffle(ids)
    held: set[int] = set()
    upcoming = first
    for entry_id in ids:
        handle.submit_at(entry_id, payloads[entry_id - first])
        held.add(entry_id)
        while upcoming in held:
            held.remove(upcoming)
            upcoming += 1
        walk.same("the held entries", list(handle.held_entry_ids), sorted(held))
    try:
        handle.submit_at(walk.chance.choice(ids), b"again")
    except EntryExistsError as error:
        if str(handle.ledger_id) not in str(error):
            walk.fail("errors_name_their_subject", f"an id that exists was refused by {error!r}")
    else:
        walk.fail("reports_are_true", "an id was appended twice")
    walk.same("the result of wait", await handle.wait(ids[-1]) >= ids[-1], True)
    await handle.wait(first + len(payloads) - 1)


# -- reading ---------------------------------------------------------------------------------------


async def read_all_ways(walk: Walk, reader: LedgerReader, written: Written) -> None:
    """Read parts of a ledger in every way there is."""
    chance, payloads, lengths = walk.chance, written.payloads, written.lengths
    last = reader.last_add_confirmed
    first = chance.randint(0, last)
    end = chance.randint(first, last)
    wanted = [(n, lengths[n], payloads[n]) for n in range(first, end + 1)]
    found = [(one.entry_id, one.ledger_length, bytes(one.payload))
             async for one in reader.read(first, end)]  # fmt: skip
    walk.same(f"a read of {first} to {end}", found, wanted)
    whole = [bytes(one.payload) async for one in reader.read()]
    walk.same("a read of everything", whole, payloads[: last + 1])
    upcoming = first
    async for run in reader.read_runs(first, end):
        walk.same("the first entry of a run", (run.first, run.ledger_id),
                  (upcoming, written.ledger_id))  # fmt: skip
        walk.same("the entries of a run", list(map(bytes, run.payloads())),
                  payloads[upcoming : run.last + 1])  # fmt: skip
        walk.same("the length of a run", len(run), run.last + 1 - run.first)
        upcoming = run.last + 1
    walk.same("the end of the runs", upcoming, end + 1)
    single = await reader.read_entry(first)
    walk.same("a single entry", (single.ledger_id, single.entry_id, single.payload),
              (written.ledger_id, first, payloads[first]))  # fmt: skip
    walk.same("the last entry", (await reader.read_last()).payload, payloads[last])
    table = await reader.to_arrow(first, end)
    walk.same("the columns of a table", table.column_names,
              ["ledger_id", "entry_id", "length", "value"])  # fmt: skip
    rows = zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
    walk.same("a table of entries", list(rows),
              [(written.ledger_id, n, len(payloads[n]), payloads[n])
               for n in range(first, end + 1)])  # fmt: skip
    for wrong in ((first, first - 2), (-1, end), (end + 1, first)):
        if wrong[0] > wrong[1] + 1 or wrong[0] < 0:
            await walk.refused(f"a read of {wrong}", anext(aiter(reader.read(*wrong)), None),
                               UsageError, written.ledger_id)  # fmt: skip


async def read_unconfirmed(walk: Walk, reader: LedgerReader, written: Written) -> None:
    """Read entries of a ledger, whether or not the reader knows that they are acknowledged."""
    first = walk.chance.randint(0, written.last)
    last = walk.chance.choice([None, walk.chance.randint(first, written.last)])
    found = [(one.entry_id, one.ledger_length, bytes(one.payload))
             async for one in reader.read_unconfirmed(first, last)]  # fmt: skip
    end = written.last if last is None else last
    wanted = [(n, written.lengths[n], written.payloads[n]) for n in range(first, end + 1)]
    walk.same(f"an unconfirmed read of {first} to {last}", found, wanted)
    beyond = reader.read_unconfirmed(written.last + 1)
    walk.same("an unconfirmed read of nothing", [one async for one in beyond], [])
    named = reader.read_unconfirmed(written.last + 1, written.last + 1)
    await walk.refused("an unconfirmed read after the end", anext(aiter(named)), NoSuchEntryError,
                       written.ledger_id, written.last + 1, ledger_id=written.ledger_id,
                       entry_id=written.last + 1)  # fmt: skip


# -- the walkthroughs ------------------------------------------------------------------------------


async def walk_ledger(walk: Walk) -> None:
    """Write a ledger, follow and read it meanwhile, close it, read all of it, and delete it."""
    counted = {"adds": 0, "add_bytes": 0, "most batches": 0}
    written = await create(walk, caller_ids=walk.chance.random() < 0.3)
    ledger_id, handle = written.ledger_id, written.handle
    other = walk.another_client()
    await append(walk, written, counted)
    with walk.costs("the opening of a ledger", other, calls=2):
        reader = await other.open_ledger(ledger_id, password=written.password)
    walk.same("whether an open ledger is closed", reader.ledger_closed, False)
    walk.same("the length that a reader sees", reader.length, 0)
    following = asyncio.ensure_future(_follow(reader))
    try:
        for number in range(1, STEPS):
            confirmed = written.last
            await append(walk, written, counted)
            lac = await reader.refresh()
            walk.between("the LAC that a reader learns", lac, confirmed, written.last)
            if number == STEPS // 2:
                await read_unconfirmed(walk, reader, written)
                waited = await walk.in_time(
                    "a wait for a confirmed entry", reader.wait_confirmed(confirmed), SOON_S
                )
                walk.between("a confirmed entry", waited or -1, confirmed, written.last)
        await _check_stored(walk, written)
        with walk.costs("the close of a ledger", walk.client, calls=2):
            walk.same("the result of close", await handle.close(), written.last)
        walk.same("whether a closed handle is closed", handle.closed, True)
        walk.same("a second close", await handle.close(), written.last)
        _check_metadata(walk, written, closed=True)
        found = await walk.in_time("the end of a tail", asyncio.shield(following), SOON_S)
        walk.same("what a tail received", found, written.payloads)
    finally:
        following.cancel()
    await _after_the_close(walk, reader, written, counted)


async def _follow(reader: LedgerReader) -> list[bytes]:
    return [bytes(one.payload) async for one in reader.tail(0)]


async def _check_stored(walk: Walk, written: Written) -> None:
    """Compare what each bookie says that it has with the write sets of the ledger."""
    await asyncio.sleep(ARRIVED_S)
    stored = walk.stage.world.cluster.ledger(written.ledger_id).value
    size, quorum, _ = written.shape
    if len(stored.segments) > 1:
        return
    for at, bookie in enumerate(stored.segments[0].ensemble):
        wanted = [n for n in range(written.last + 1) if (at - n) % size < quorum]
        if not wanted:
            continue
        ranges = await walk.client.list_entries(bookie, written.ledger_id)
        found = [n for first, last in ranges for n in range(first, last + 1)]
        walk.same(f"the list of entries on {bookie}", found, wanted)
        info = await walk.client.bookie_info(bookie)
        walk.between(f"the free space of {bookie}", info.free_bytes, 0, info.total_bytes)


async def _after_the_close(
    walk: Walk, reader: LedgerReader, written: Written, counted: dict[str, int]
) -> None:
    ledger_id, last = written.ledger_id, written.last
    another = walk.another_client()
    if isinstance(written.handle, LedgerWriter):
        await walk.refused("an append to a closed ledger", written.handle.append(b"x"),
                           LedgerClosedError, ledger_id, known=False)  # fmt: skip
    walk.same("the end that a reader learns", await reader.refresh(), last)
    walk.same("whether a closed ledger is closed", reader.ledger_closed, True)
    walk.same("the length that a reader sees", reader.length, written.size_bytes)
    with walk.costs("the opening of a closed ledger", another, calls=1):
        fresh = await another.open_ledger(ledger_id, password=written.password)
    with walk.costs("the reading of a closed ledger", another, calls=0):
        await read_all_ways(walk, fresh, written)
    most = Bounds(
        (last + 1) * ENTRY_BYTES_MOST, last + 1,
        written.size_bytes + (last + 1) * ENTRY_BYTES_MOST,
    )  # fmt: skip
    with walk.traffic("one read of everything", another, lambda: most):
        walk.same("one read of everything", [one.entry_id async for one in fresh.read()],
                  list(range(last + 1)))  # fmt: skip
    await read_unconfirmed(walk, fresh, written)
    walk.same("a recovery of a closed ledger",
              (await another.open_ledger(ledger_id, password=written.password, recover=True))
              .last_add_confirmed, last)  # fmt: skip
    beyond = fresh.read(last + 1, last + 1)
    await walk.refused("a read after the end", anext(aiter(beyond)), NoSuchEntryError, ledger_id,
                       last + 1, ledger_id=ledger_id, entry_id=last + 1)  # fmt: skip
    if written.handle.metadata.password is not None:
        await walk.refused("a wrong password", another.open_ledger(ledger_id, password=b"wrong"),
                           UnauthorizedError, ledger_id)  # fmt: skip
    fresh.close()
    walk.same("whether a closed reader is closed", fresh.closed, True)
    await walk.refused("a read of a closed reader", fresh.read_entry(0), UsageError, ledger_id)
    check_counters(walk, counted, changes=0)
    walk.stage.checker.facts(ledger_id).deleted = True
    with walk.costs("the deletion of a ledger", walk.client, calls=1):
        await walk.client.delete_ledger(ledger_id)
    await walk.refused("the opening of a deleted ledger", another.open_ledger(ledger_id),
                       NoSuchLedgerError, ledger_id)  # fmt: skip
    await walk.refused("the metadata of a deleted ledger", another.ledger_metadata(ledger_id),
                       NoSuchLedgerError, ledger_id)  # fmt: skip
    await walk.client.delete_ledger(ledger_id)  # A second deletion succeeds.


def check_counters(walk: Walk, counted: dict[str, int], *, changes: int) -> None:
    """Compare the counters and the metrics of a client with what it has done."""
    counters = walk.client.counters
    walk.same("the counter of adds", counters.adds, counted["adds"])
    walk.same("the counter of add bytes", counters.add_bytes, counted["add_bytes"])
    walk.between("the counter of add batches", counters.add_batches, 1, counted["most batches"])
    walk.same("the counter of ensemble changes", counters.ensemble_changes, changes)
    walk.same("the number of measured adds", counters.add_time.count, counted["adds"])
    if not changes:
        walk.same("the counter of failures", counters.bookie_failures, 0)
        walk.same("the suspects", walk.client.suspects(), [])
    told = metrics_of(walk.client.metrics())
    for name in COUNTERS:
        metric = f"quire_client_{name}_total"
        walk.same(f"the metric {metric}", told.get(metric), getattr(counters, name))
    walk.same("the metric of measured adds", told.get("quire_client_add_seconds_count"),
              counted["adds"])  # fmt: skip
    for name in ("suspects", "opens_waiting", "recoveries_waiting"):
        walk.same(f"the metric of {name}", told.get(f"quire_client_{name}"), 0)


def metrics_of(text: str) -> dict[str, float]:
    """Return the metrics without labels by name."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines if "{" not in name}


async def walk_takeover(walk: Walk) -> None:
    """Take a ledger over from its writer, and check what each of the two is told."""
    counted = {"adds": 0, "add_bytes": 0, "most batches": 0}
    written = await create(walk)
    handle, other = written.handle, walk.another_client()
    assert isinstance(handle, LedgerWriter)
    await append(walk, written, counted)
    confirmed = written.last
    first = confirmed + 1
    more = walk.chance.randint(0, 5)
    for entry_id in range(first, first + more):
        payload = walk.stage.payload(written.ledger_id, entry_id)
        written.payloads.append(payload)
        handle.submit(payload)
    await asyncio.sleep(walk.chance.choice([0.0, 0.001, 0.1]))
    walk.stage.checker.facts(written.ledger_id).contested = True
    with walk.costs("a recovery", other, calls=6):
        reader = await other.open_ledger(written.ledger_id, password=written.password, recover=True)
    end = reader.last_add_confirmed
    walk.between("the end of a recovered ledger", end, confirmed, written.last)
    walk.same("whether a recovered ledger is closed", reader.ledger_closed, True)
    del written.payloads[end + 1 :]
    walk.same("the length of a recovered ledger", reader.length, written.size_bytes)
    await read_all_ways(walk, reader, written)
    await walk.refused("an append after a takeover", handle.append(b"x"), LedgerFencedError,
                       written.ledger_id, known=False, ledger_id=written.ledger_id)  # fmt: skip
    walk.same("whether a fenced handle is closed", handle.closed, True)
    walk.same("the suspects", other.suspects(), [])
    again = await walk.another_client().open_ledger(written.ledger_id, password=written.password)
    walk.same("the end that another reader sees", again.last_add_confirmed, end)


async def walk_lost_bookie(walk: Walk) -> None:
    """Stop a bookie of an ensemble while its ledger is written. Another one must replace it."""
    world = walk.stage.world
    counted = {"adds": 0, "add_bytes": 0, "most batches": 0}
    written = await create(walk, spare=1)
    if len(world.bookies) <= written.shape[0]:
        return
    await append(walk, written, counted)
    ensemble = world.cluster.ledger(written.ledger_id).value.segments[0].ensemble
    lost = walk.chance.choice([one for one in world.bookies if bookie_id(one) in ensemble])
    changes = walk.stage.checker.facts(written.ledger_id).changes
    await world.stop(lost)
    for _ in range(STEPS):
        await append(walk, written, counted, calls=CALLS_OF_A_CHANGE)
    await written.handle.flush()
    walk.same("the result of close", await written.handle.close(), written.last)
    metadata = world.cluster.ledger(written.ledger_id).value
    changes = walk.stage.checker.facts(written.ledger_id).changes - changes - 1
    counters = walk.client.counters
    walk.same("the counter of ensemble changes", counters.ensemble_changes, changes)
    walk.between("the counter of failures", counters.bookie_failures, 1, STEPS * STEP_ENTRIES_MAX)
    if bookie_id(lost) in metadata.segments[-1].ensemble and written.shape[2] > 1:
        walk.fail("reports_are_true", f"{lost} was lost, but {metadata.segments[-1]} names it")
    while lost not in world.bookies or not world.bookies[lost].recovered:
        await asyncio.sleep(ARRIVED_S)  # It may have the only copy of some entries.
    await asyncio.sleep(ARRIVED_S)
    reader = await walk.another_client().open_ledger(written.ledger_id, password=written.password)
    await read_all_ways(walk, reader, written)
