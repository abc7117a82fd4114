"""The programs that load the cluster. Each one runs until it is killed, and is then started again.

    python -m tests.support.torture.clients KIND URI DIRECTORY NAME SEED

KIND is `writer`, `reader`, `recoverer`, `deleter`, `producer` or `consumer`. The journal of a
program is DIRECTORY/NAME.journal. A program prints one line when it is connected.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import quire
from quire.errors import NoSuchEntryError, NoSuchLedgerError, QuireError, StreamGapError
from quire.streams import DLSN, EARLIEST
from tests.support.torture.journal import (
    SUFFIX,
    Journal,
    LedgerPromise,
    ProducerPromise,
    Promises,
    check_ledger,
    entry_payload,
    record_of,
    record_payload,
)

CONFIG = quire.ClientConfig(
    add_timeout_s=2.0,
    read_timeout_s=2.0,
    speculative_read_s=0.5,
    connect_timeout_s=2.0,
    long_poll_s=1.0,
    explicit_lac_interval_s=0.1,
    bookies_wait_s=10.0,
    lost_quorum_wait_s=10.0,
)
SHAPES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2))
"""The ensemble size, write quorum and ack quorum of the ledgers that writers choose from.

Every entry is on two bookies at least, because one directory at a time may be rolled back.
"""
ENTRIES_MAX = 1_500
"""The largest number of entries in a ledger."""
PIECE_MAX = 40
"""The largest number of entries or records in one append."""
PAUSE_S = 0.03
"""The longest pause between two appends in seconds, so that the load leaves time for the faults."""
WRITERS_AT_ONCE = 3
"""The number of ledgers that one writer program writes at the same time."""
LIVE_MAX = 120
"""The number of ledgers above which the deleter program deletes old ones."""
SETTLED_S = 10.0
"""Seconds without a change after which a ledger may be recovered or deleted by other programs."""
NAMESPACE = "/torture"
STREAMS = ("one", "two", "three")
SUBSCRIBER = "consumer"
CONSUMED_MAX = 2_000
"""The largest number of records that a consumer reads before it commits, and perhaps truncates."""
SHORT_PAUSE_S = 0.2


class Program:
    """One client program: its client, its own journal, and the promises of all journals."""

    def __init__(self, client: quire.Client, directory: Path, name: str, seed: int) -> None:
        self.client = client
        self.name = name
        self.directory = directory
        self.chance = random.Random(seed)
        self.journal = Journal(directory / f"{name}{SUFFIX}")
        self.promises = Promises()

    def failed(self, error: QuireError) -> None:
        """Count a call that failed. Calls may fail during faults, but promises must still hold."""
        self.journal.add("counted", f"failed:{type(error).__name__}", 1)

    def refresh(self) -> dict[int, LedgerPromise]:
        self.promises.update(self.directory)
        return self.promises.live()

    def some_ledger(self, *, settled: bool = False) -> int | None:
        live = self.refresh()
        newest_s = time.monotonic() - (SETTLED_S if settled else 0.0)
        able = [ledger for ledger, one in live.items() if one.changed_s <= newest_s]
        return self.chance.choice(able) if able else None

    async def repeat(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except QuireError as error:
                self.failed(error)
                await asyncio.sleep(self.chance.uniform(0.0, SHORT_PAUSE_S))

    # -- ledgers ------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write one ledger, and close it or leave it to a recovery."""
        chance = self.chance
        size, write_quorum, ack_quorum = chance.choice(SHAPES)
        deferred = chance.random() < 0.1
        writer = await self.client.create_ledger(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=chance.choice(("crc32c", "crc32c", "hmac", "crc32")),
            deferred_sync=deferred,
        )
        ledger, last = writer.ledger_id, -1
        self.journal.add("created", ledger)
        try:
            entries = chance.choice((1, 20, 200, ENTRIES_MAX))
            while last + 1 < entries:
                until = min(entries, last + 1 + chance.randint(1, PIECE_MAX))
                last = await writer.append_many(
                    [entry_payload(ledger, entry) for entry in range(last + 1, until)]
                )
                if deferred:
                    await writer.force()
                self.journal.add("acked", ledger, last)
                await asyncio.sleep(chance.uniform(0.0, PAUSE_S))
            if chance.random() < 0.7:
                self.journal.add("closed", ledger, await writer.close())
            self.journal.add("counted", "ledgers-written", 1)
        finally:
            writer.abandon()

    async def recover(self) -> None:
        """Recover a random ledger, perhaps while it is written, and check its entries."""
        ledger = self.some_ledger(settled=self.chance.random() < 0.8)
        if ledger is None:
            await asyncio.sleep(SHORT_PAUSE_S)
            return
        known = self.promises.ledgers[ledger]
        promise = LedgerPromise(known.acked, set(known.ends))
        try:
            async with self.client.open_ledger(ledger, recover=True) as reader:
                end = reader.last_add_confirmed
                self.journal.add("closed", ledger, end)
                payloads = [entry.payload async for entry in reader.read()]
        except (NoSuchLedgerError, NoSuchEntryError) as error:
            self._denied(ledger, error)
            return
        for what in check_ledger(ledger, promise, end, payloads):
            self.journal.add("wrong", what)
        self.journal.add("counted", "recoveries", 1)
        self.journal.add("counted", "entries-read", len(payloads))

    async def read(self) -> None:
        """Read or follow a random ledger without recovery, and check its entries."""
        ledger = self.some_ledger()
        if ledger is None:
            await asyncio.sleep(SHORT_PAUSE_S)
            return
        next_entry = 0
        try:
            async with self.client.open_ledger(ledger) as reader:
                follow = self.chance.random() < 0.5
                entries = reader.tail(0) if follow else reader.read()
                async with asyncio.timeout(15.0):
                    async for entry in entries:
                        if entry.entry_id != next_entry:
                            self.journal.add("wrong", f"ledger {ledger}: {next_entry} was skipped")
                        if entry.payload != entry_payload(ledger, entry.entry_id):
                            self.journal.add("wrong", f"ledger {ledger}: {next_entry} is different")
                        next_entry += 1
        except (NoSuchLedgerError, NoSuchEntryError) as error:
            self._denied(ledger, error)
        except TimeoutError:
            pass  # The ledger is not closed yet, or its bookies are away.
        self.journal.add("counted", "entries-read", next_entry)

    def _denied(self, ledger: int, error: QuireError) -> None:
        """Report a broken promise: an entry was denied, unless the ledger was deleted."""
        if ledger in self.refresh():
            self.journal.add("wrong", f"ledger {ledger} was denied: {error}")

    async def delete(self) -> None:
        """Delete the ledger that was unchanged for longest if there are more than `LIVE_MAX`."""
        live = self.refresh()
        if len(live) <= LIVE_MAX:
            await asyncio.sleep(1.0)
            return
        ledger = min(live, key=lambda one: live[one].changed_s)
        if live[ledger].changed_s > time.monotonic() - SETTLED_S:
            await asyncio.sleep(1.0)
            return
        self.journal.add("deleting", ledger)
        try:
            await self.client.delete_ledger(ledger)
        except NoSuchLedgerError:
            pass  # An earlier attempt succeeded, and its answer was lost.
        self.journal.add("counted", "ledgers-deleted", 1)

    # -- streams ------------------------------------------------------------------------------

    async def produce(self) -> None:
        """Take over a random stream, append for a while, and then close or abandon the writer."""
        chance, stream = self.chance, self.chance.choice(STREAMS)
        async with self.client.namespace(NAMESPACE) as streams:
            writer = await streams.open_writer(stream)
            try:
                producer = await writer.producer(self.name)
                upcoming = producer.last_sequence + 1
                self.journal.add("counted", "takeovers", 1)
                for _ in range(chance.randint(1, 60)):
                    # Sometimes a piece is sent again, as after a lost answer.
                    first = max(0, upcoming - chance.choice((0, 0, 0, 5)))
                    end = upcoming + chance.randint(1, PIECE_MAX)
                    records = [record_payload(self.name, number) for number in range(first, end)]
                    await producer.append_many(records, first)
                    upcoming = end
                    self.journal.add("sent", stream, self.name, upcoming - 1)
                    if chance.random() < 0.05:
                        await writer.roll()
                    await asyncio.sleep(chance.uniform(0.0, PAUSE_S))
                if chance.random() < 0.5:
                    await writer.close()
            finally:
                writer.abandon()

    async def consume(self) -> None:
        """Follow a stream from a subscription's position, commit, and often truncate before it."""
        stream = self.chance.choice(STREAMS)
        async with self.client.namespace(NAMESPACE) as streams:
            subscription = streams.subscription(stream, SUBSCRIBER)
            self.refresh()
            start = await subscription.position()
            expected: dict[str, int] = {}
            position: DLSN | None = None
            consumed = 0
            try:
                async with (
                    asyncio.timeout(15.0),
                    streams.open_reader(stream, start=start or EARLIEST, follow=True) as reader,
                ):
                    async for record in reader:
                        self._consumed(stream, record.payload, expected)
                        position, consumed = record.position.next_slot(), consumed + 1
                        if consumed >= CONSUMED_MAX:
                            break
            except TimeoutError:
                pass  # Nothing more was appended for a while.
            except StreamGapError as error:
                self.journal.add("wrong", f"stream {stream}: {error}")
                return
            self.journal.add("counted", "records-consumed", consumed)
            if position is None:
                return
            for name, upcoming in expected.items():
                self.journal.add("truncating", stream, name, upcoming)
            await subscription.commit(position)
            if self.chance.random() < 0.7:
                await streams.truncate(stream, position)
                self.journal.add("counted", "truncations", 1)

    def _consumed(self, stream: str, payload: bytes, expected: dict[str, int]) -> None:
        """Check that a record is the next one of its producer.

        `expected` has the number of the next record by producer, and is updated.
        """
        found = record_of(payload)
        if found is None:
            self.journal.add("wrong", f"stream {stream}: a record is different: {payload[:40]!r}")
            return
        name, number = found
        known = self.promises.producers(stream).get(name, ProducerPromise())
        if name in expected and number != expected[name]:
            what = f"stream {stream}: {name} continues with {number}, not {expected[name]}"
            self.journal.add("wrong", what)
        elif name not in expected and number > known.truncated:
            what = f"stream {stream}: {name} continues with {number}, not {known.truncated}"
            self.journal.add("wrong", what)
        expected[name] = number + 1


async def create_streams(client: quire.Client) -> None:
    async with client.namespace(NAMESPACE, create=True) as streams:
        for stream in STREAMS:
            await streams.create_stream(stream, settings={"roll_bytes": 256 * 1024})


async def run(kind: str, uri: str, directory: Path, name: str, seed: int) -> None:
    while True:
        try:
            client = await quire.connect(uri, config=CONFIG)
        except QuireError:
            await asyncio.sleep(SHORT_PAUSE_S)
            continue
        break
    async with client:
        program = Program(client, directory, name, seed)
        work = {
            "writer": program.write,
            "reader": program.read,
            "recoverer": program.recover,
            "deleter": program.delete,
            "producer": program.produce,
            "consumer": program.consume,
        }[kind]
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS_AT_ONCE if kind == "writer" else 1):
                group.create_task(program.repeat(work))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
