"""Put, get, replace, delete, list and sweep objects, and check their invariants.

A few names are shared by all these clients of a run, so that calls meet.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from quire._runtime.opening import opening
from quire.client import Client
from quire.errors import QuireError
from quire.streams.objects.format import BUCKET_KEY, ObjectInfo
from quire.streams.objects.objects import Objects
from quire.streams.objects.source import Source
from quire_simulator.actors.calls import call
from quire_simulator.invariants.history import PAYLOAD_MAX_BYTES
from quire_simulator.invariants.objects import BUCKET, PUT_KEY, ObjectCall, ObjectInvariants
from quire_simulator.plans.plans import ObjectPlan
from quire_simulator.world.stage import Stage

NAMES = ("a", "a/b", "a/b/c", "d")
"""The names of objects. Some are folders of others."""
SIZE_MAX_BYTES = 6_000
CHUNKS_BYTES = (7, 100, 2_000)
"""The sizes of chunks that puts choose from, besides the default."""
CHUNKS_MAX = 200
"""The largest number of such chunks of one object."""
SHAPES = ((1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 2, 2))
SOURCE_BREAKS = 0.05
"""The probability that a source that yields pieces fails."""
SLOW_S = 1.0
"""The longest pause of such a source, and of a reader that has opened a version."""
SWEPT_AFTER_S = (-1.0, 0.0, 0.5)
"""Shorter than a slow put, so a sweep sometimes removes what is about to be published."""
YOUNGER_S = 3_600.0
"""Longer than any error of a calendar, so that every ledger is older than that from now."""
LISTS = 4
"""The number of lists with a prefix or after a name that the judge asks for, each time."""
ATTEMPTS_MAX = 20
RETRY_S = 0.5


class SourceBrokenError(QuireError):
    """Raised by a source that fails."""


class _Actor:
    """One client, with one call at a time."""

    def __init__(self, stage: Stage, name: str, client: Client, plan: ObjectPlan) -> None:
        assert stage.objects is not None
        self.stage = stage
        self.facts: ObjectInvariants = stage.objects
        self.who = name
        self.plan = plan
        self.chance = stage.world.loop.derive(f"actor {name}")
        self.objects = Objects(_observed(stage, client), BUCKET)
        self.puts = 0
        self._listing = stage.world.loop.derive(f"lists of {name}")

    async def round(self) -> None:
        kinds: list[Callable[[], Awaitable[object]]]
        kinds = [self.put, self.put, self.put_replacing, self.delete, self.delete]
        if self.chance.random() < self.plan.reads:
            kinds = [self.get, self.get, self.info, self.list_some]
        elif self.chance.random() < self.plan.sweeps:
            kinds = [self.sweep]
        await self.chance.choice(kinds)()

    def _name(self) -> str:
        return self.chance.choice(NAMES[: self.plan.names])

    # -- changes ------------------------------------------------------------------------------

    async def put(self) -> None:
        """Put an object that may replace any other one, or none."""
        replace = self.chance.random() < 0.5
        begun, data = self._begin_put()
        begun.replace = replace
        await self._put(begun, data, replace)

    async def put_replacing(self) -> None:
        """Put an object that may replace only those to which a function agrees."""
        begun, data = self._begin_put()

        def agree(there: ObjectInfo) -> bool:
            if self.chance.random() < 0.8:
                begun.approved.add(there.metadata[PUT_KEY])
                return True
            return False

        await self._put(begun, data, agree)

    def _begin_put(self) -> tuple[ObjectCall, bytes]:
        put = f"{self.who}/{self.puts}"
        self.puts += 1
        size = self.chance.choice([0, 1, self.chance.randrange(SIZE_MAX_BYTES)])
        data = self.stage.world.loop.derive(f"object {put}").randbytes(size)
        return self.facts.begin_put(self.who, self._name(), put, data), data

    async def _put(self, begun: ObjectCall, data: bytes, replace: Any) -> None:
        ensemble_size, write_quorum, ack_quorum = self.chance.choice(SHAPES)
        chunk_bytes = self.chance.choice([0, *CHUNKS_BYTES])
        how: dict[str, Any] = {}
        if chunk_bytes:
            how["chunk_bytes"] = max(chunk_bytes, len(data) // CHUNKS_MAX + 1)
        source: Source = data
        if self.chance.random() < 0.3:
            source = _pieces(data, random.Random(self.chance.random()))
        work = self.objects.put(
            begun.name,
            source,
            replace=replace,
            metadata={PUT_KEY: begun.put},
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            **how,
        )
        try:
            info = await call(self.stage, self.who, work)
        except QuireError as error:
            self.failed(f"put {begun.put}", error)
            self.facts.was_not_put(begun, error)
        else:
            self.noted(f"put {begun.put} as {begun.name} in ledger {info.ledger_id}")
            self.facts.was_put(begun, info)
        self.facts.end(begun)

    async def delete(self) -> None:
        begun = self.facts.begin(self.who, "delete", self._name())
        try:
            existed = await call(self.stage, self.who, self.objects.delete(begun.name))
        except QuireError as error:
            self.failed(f"delete {begun.name}", error)
        else:
            self.noted(f"deleted {begun.name}: {existed}")
            self.facts.was_deleted(begun, existed)
        self.facts.end(begun)

    async def sweep(self) -> None:
        begun = self.facts.begin(self.who, "sweep")
        try:
            older_s = self.chance.choice(SWEPT_AFTER_S)
            deleted = await call(self.stage, self.who, self.objects.sweep(older_s))
        except QuireError as error:
            self.failed("sweep", error)
        else:
            self.noted(f"swept {deleted}")
            self.facts.were_swept(begun, deleted)
        self.facts.end(begun)

    # -- reads --------------------------------------------------------------------------------

    async def get(self) -> None:
        """Read a version, as a whole or in part, now or later."""
        await self.read(self._name(), whole=self.chance.random() < 0.6)

    async def read(self, name: str, *, whole: bool = True) -> QuireError | None:
        begun, put = self.facts.begin(self.who, "get", name), None
        try:
            async with self.objects.get(name) as reader:
                self.facts.described(begun, reader.info)
                put = reader.info.metadata[PUT_KEY]
                first, size = 0, None
                if not whole:
                    await asyncio.sleep(self.chance.random() ** 3 * SLOW_S)
                    first = self.chance.randint(0, reader.info.size_bytes)
                    size = self.chance.randrange(SIZE_MAX_BYTES)
                data = await call(self.stage, self.who, reader.read_all(first, size))
                self.facts.was_read(begun, reader.info, data, first, size)
        except QuireError as error:
            self.failed(f"get {name}", error)
            self.facts.was_not_read(begun, error, put)
            return error
        finally:
            self.facts.end(begun)
        return None

    async def info(self) -> None:
        begun = self.facts.begin(self.who, "get", self._name())
        try:
            self.facts.described(begun, await self.objects.info(begun.name))
        except QuireError as error:
            self.failed(f"info {begun.name}", error)
            self.facts.was_not_read(begun, error)
        self.facts.end(begun)

    async def list_some(self) -> None:
        """List all objects, or those with a prefix and after a name."""
        prefix = self._listing.choice(["", "", "", "a", "a/", "a/b", "d"])
        await self.list(prefix, self._listing.choice(["", "", "a", "a/b", "c"]))

    async def list(self, prefix: str = "", after: str = "") -> list[ObjectInfo] | None:
        begun = self.facts.begin(self.who, "list")
        infos = []
        try:
            async for info in self.objects.list(prefix, after=after):
                self.facts.described(begun, info)
                infos.append(info)
        except QuireError as error:
            self.failed("list", error)
            return None
        finally:
            self.facts.end(begun)
        self.facts.were_listed(begun, infos, prefix, after)
        return infos

    # -- notes --------------------------------------------------------------------------------

    def noted(self, what: str) -> None:
        self.stage.history.add(self.who, "object", note=what)

    def failed(self, what: str, error: QuireError) -> None:
        self.stage.history.add(self.who, "failed", note=f"{what}: {type(error).__name__}")
        self.stage.not_blamed(self.who, error)


async def use_objects(stage: Stage, name: str, client: Client, plan: ObjectPlan) -> None:
    """Use the objects of a bucket in some rounds, and begin none after the time of faults."""
    actor = _Actor(stage, name, client, plan)
    stage.world.metadata_stalls[name] = plan.stalls
    for _ in range(plan.rounds):
        if stage.world.loop.time() > stage.begin_s + stage.plan.span_s:
            break
        await actor.round()
        await asyncio.sleep(actor.chance.random() * plan.pause_s)
    del stage.world.metadata_stalls[name]


async def judge(stage: Stage) -> None:
    """Read all objects, sweep, and check that their ledgers are left and no others."""
    if stage.objects is None:
        return
    name = "object-judge"
    client = stage.world.client(name, stage.plan.client_config)
    plan = ObjectPlan(0, len(NAMES), 0.0, 0, 0.0, reads=1.0, sweeps=0.0, stalls=0.0)
    actor = _Actor(stage, name, client, plan)
    facts, cluster = stage.objects, stage.world.cluster
    there = [one for one in sorted(facts.heads) if facts.now(one) is not None]
    for _ in range(2):
        infos = await actor.list()
        if infos is None or [info.name for info in infos] != there:
            stage.checker.fail("an_object_is_there", f"at the end {infos} are there, not {there}")
        for _ in range(LISTS):
            await actor.list_some()
        for one in there:
            await _readable(stage, actor, one)
        begun = facts.begin(name, "sweep")
        facts.were_swept(begun, await actor.objects.sweep(-YOUNGER_S))
        facts.end(begun)
    named = {info.ledger_id for info in infos or ()}
    left = {
        ledger_id
        for ledger_id in cluster.ledgers
        if cluster.ledger(ledger_id).value.custom.get(BUCKET_KEY) == BUCKET.encode()
    }
    if left != named:
        what = f"objects have the ledgers {sorted(named)}, but {sorted(left)} are there"
        stage.checker.fail("no_ledger_is_left_of_an_object", what)
    await client.close()


async def _readable(stage: Stage, actor: _Actor, name: str) -> None:
    for _ in range(ATTEMPTS_MAX):
        if (error := await actor.read(name)) is None:
            return
        await asyncio.sleep(RETRY_S)
    stage.checker.fail("an_object_is_there", f"{name} cannot be read at the end: {error}")


def _observed(stage: Stage, client: Client) -> Client:
    """Let the checker follow each ledger that the client writes."""
    create = client.create_ledger

    @opening
    async def create_ledger(**how: Any) -> Any:
        handle = await create(**how)
        facts = stage.checker.facts(handle.ledger_id)
        facts.handle_confirmed = lambda: handle.last_add_confirmed
        facts.scale = SIZE_MAX_BYTES // PAYLOAD_MAX_BYTES + 1  # A chunk may be a whole object.
        return handle

    client.create_ledger = create_ledger  # type: ignore[method-assign]
    return client


async def _pieces(data: bytes, chance: random.Random) -> AsyncIterator[bytes]:
    """Yield the bytes in pieces, some of them late."""
    at = 0
    while at < len(data):
        size = chance.randint(1, len(data))
        yield data[at : at + size]
        at += size
        await asyncio.sleep(chance.random() ** 4 * SLOW_S)
        if chance.random() < SOURCE_BREAKS:
            raise SourceBrokenError("the source of an object broke")
