"""The metadata stores behave like a model of dicts, for calls through two stores of one cluster."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.errors import (
    KeyExistsError,
    LedgerExistsError,
    NoSuchKeyError,
    NoSuchLedgerError,
    VersionConflictError,
)
from quire.metadata.interface import BookieAddress, MetadataStore, Registration, Versioned
from quire.metadata.sqlite.store import SqliteStore
from quire_simulator.metadata.store import MemoryCluster, MemoryStore

T = TypeVar("T")

METADATA = LedgerMetadata(1, 1, 1, (Segment(0, ("a:1",)),))
IDS = st.sampled_from([0, 1, 2, 3, 5, 10_000, 2**31 - 1, LEDGER_ID_MAX])
VERSIONS = st.integers(0, 3)
STORES = st.sampled_from([0, 1])
COOKIES = st.sampled_from(["a:1", "b:1"])
NAMES = st.sampled_from(["a", "b", "a-b"])
KEYS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
DATA = st.binary(max_size=3)
BOOKIES = st.sampled_from(["x", "y"])


class FixedClock:
    def now_ms(self) -> int:
        return 1_234

    def monotonic(self) -> float:
        return 0.0


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ledgers: dict[int, tuple[LedgerMetadata, int]] = {}
        self.nodes: dict[tuple[str, ...], tuple[bytes, int]] = {}
        self.registered: dict[str, tuple[int, bool, Registration]] = {}

    @initialize()
    def open(self) -> None:
        self.stores = [self.run(self.open_store()), self.run(self.open_store())]

    async def open_store(self) -> MetadataStore:
        raise NotImplementedError

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        for store in getattr(self, "stores", ()):
            self.run(store.close())
        self.runner.close()

    # -- ledgers ------------------------------------------------------------------------------

    @rule(at=STORES, ledger_id=st.none() | IDS, ctoken=st.integers(0, 2))
    def create_ledger(self, at: int, ledger_id: int | None, ctoken: int) -> None:
        metadata = replace(METADATA, ctoken=ctoken)
        call = self.stores[at].create_ledger(metadata, ledger_id)
        there = None if ledger_id is None else self.ledgers.get(ledger_id)
        if there is not None and not (ctoken and there[0].ctoken == ctoken):
            with pytest.raises(LedgerExistsError):
                self.run(call)
            return
        found, created = self.run(call)
        if there is not None:
            assert (found, created) == (ledger_id, Versioned(*there))
            return
        assert found not in self.ledgers
        assert ledger_id in (None, found)
        assert created == Versioned(replace(metadata, ctime_ms=1_234), 0)
        self.ledgers[found] = (created.value, 0)

    @rule(at=STORES, ledger_id=IDS)
    def read_ledger(self, at: int, ledger_id: int) -> None:
        call = self.stores[at].read_ledger(ledger_id)
        if ledger_id in self.ledgers:
            assert self.run(call) == Versioned(*self.ledgers[ledger_id])
        else:
            with pytest.raises(NoSuchLedgerError):
                self.run(call)

    @rule(at=STORES, ledger_id=IDS, version=VERSIONS, last=st.integers(-1, 5))
    def write_ledger(self, at: int, ledger_id: int, version: int, last: int) -> None:
        there = self.ledgers.get(ledger_id)
        metadata = (METADATA if there is None else there[0]).with_close(last, last + 1)
        call = self.stores[at].write_ledger(ledger_id, metadata, version)
        if there is None:
            with pytest.raises(NoSuchLedgerError):
                self.run(call)
        elif there[1] != version:
            with pytest.raises(VersionConflictError):
                self.run(call)
        else:
            assert self.run(call) == Versioned(metadata, version + 1)
            self.ledgers[ledger_id] = (metadata, version + 1)

    @rule(at=STORES, ledger_id=IDS)
    def delete_ledger(self, at: int, ledger_id: int) -> None:
        self.run(self.stores[at].delete_ledger(ledger_id))
        self.ledgers.pop(ledger_id, None)

    @rule(at=STORES, first=IDS)
    def list_ledgers(self, at: int, first: int) -> None:
        async def listed() -> list[int]:
            ids: list[int] = []
            start = first
            async for ledgers in self.stores[at].list_ledgers(first):
                assert ledgers.first == start
                ids += ledgers.ledger_ids
                start = ledgers.last + 1
            assert start == LEDGER_ID_MAX + 1
            return ids

        assert self.run(listed()) == sorted(i for i in self.ledgers if i >= first)

    # -- cookies and values: one model, since they differ only in their names ------------------

    @rule(at=STORES, name=COOKIES, version=st.none() | VERSIONS, data=DATA)
    def write_cookie(self, at: int, name: str, version: int | None, data: bytes) -> None:
        call = self.stores[at].write_cookie(name, data, version)
        self.write(("cookie", name), version, data, call)

    @rule(at=STORES, key=KEYS, version=st.none() | VERSIONS, data=DATA)
    def write_value(self, at: int, key: tuple[str, ...], version: int | None, data: bytes) -> None:
        call = self.stores[at].write_value(key, data, version)
        self.write(("value", *key), version, data, call)

    def write(
        self,
        node: tuple[str, ...],
        version: int | None,
        data: bytes,
        call: Coroutine[Any, Any, int],
    ) -> None:
        there = self.nodes.get(node)
        error: type[Exception] | None = None
        if version is None:
            error = None if there is None else KeyExistsError
        elif there is None:
            error = NoSuchKeyError
        elif there[1] != version:
            error = VersionConflictError
        if error is not None:
            with pytest.raises(error):
                self.run(call)
            return
        wanted = 0 if version is None else version + 1
        assert self.run(call) == wanted
        self.nodes[node] = (data, wanted)

    @rule(at=STORES, name=COOKIES, version=st.just(-1) | VERSIONS)
    def delete_cookie(self, at: int, name: str, version: int) -> None:
        self.delete(("cookie", name), version, self.stores[at].delete_cookie(name, version))

    @rule(at=STORES, key=KEYS, version=st.just(-1) | VERSIONS)
    def delete_value(self, at: int, key: tuple[str, ...], version: int) -> None:
        self.delete(("value", *key), version, self.stores[at].delete_value(key, version))

    def delete(self, node: tuple[str, ...], version: int, call: Coroutine[Any, Any, Any]) -> None:
        there = self.nodes.get(node)
        if there is not None and version not in (-1, there[1]):
            with pytest.raises(VersionConflictError):
                self.run(call)
            return
        found = self.run(call)
        if node[0] == "value":
            assert found == (there is not None)
        self.nodes.pop(node, None)

    @rule(at=STORES, name=COOKIES)
    def read_cookie(self, at: int, name: str) -> None:
        self.read(("cookie", name), self.stores[at].read_cookie(name))

    @rule(at=STORES, key=KEYS)
    def read_value(self, at: int, key: tuple[str, ...]) -> None:
        self.read(("value", *key), self.stores[at].read_value(key))

    def read(self, node: tuple[str, ...], call: Coroutine[Any, Any, Versioned[bytes]]) -> None:
        if node in self.nodes:
            assert self.run(call) == Versioned(*self.nodes[node])
        else:
            with pytest.raises(NoSuchKeyError):
                self.run(call)

    @rule(at=STORES, prefix=st.lists(NAMES, max_size=2).map(tuple))
    def list_values(self, at: int, prefix: tuple[str, ...]) -> None:
        under = ("value", *prefix)
        names = {
            n[len(under)] for n in self.nodes if len(n) > len(under) and n[: len(under)] == under
        }
        assert self.run(self.stores[at].list_values(prefix)) == sorted(names)

    # -- bookies ------------------------------------------------------------------------------

    @rule(at=STORES, name=BOOKIES, readonly=st.booleans())
    def register(self, at: int, name: str, readonly: bool) -> None:
        if name in self.registered:
            return  # waiting for it would take the session's time-out
        address = BookieAddress(name, "h", 1)
        registration = self.run(self.stores[at].register_bookie(address, readonly))
        self.registered[name] = (at, readonly, registration)

    @rule(name=BOOKIES, readonly=st.booleans())
    def move(self, name: str, readonly: bool) -> None:
        if name in self.registered:
            at, _, registration = self.registered[name]
            self.run(registration.set_readonly(readonly))
            self.registered[name] = (at, readonly, registration)

    @rule(name=BOOKIES)
    def withdraw(self, name: str) -> None:
        if name in self.registered:
            self.run(self.registered.pop(name)[2].close())

    @rule(at=STORES)
    def close_and_open(self, at: int) -> None:
        """Everything ephemeral ends with its session, and all else stays."""
        self.run(self.stores[at].close())
        self.stores[at] = self.run(self.open_store())
        for name in [n for n, (owner, _, _) in self.registered.items() if owner == at]:
            del self.registered[name]

    @invariant()
    def bookies_agree(self) -> None:
        for store in getattr(self, "stores", ()):
            found = self.run(store.bookies())
            wanted = {name: readonly for name, (_, readonly, _) in self.registered.items()}
            assert set(found.writable) == {n for n, readonly in wanted.items() if not readonly}
            assert set(found.readonly) == {n for n, readonly in wanted.items() if readonly}

    @invariant()
    def cookies_agree(self) -> None:
        wanted = sorted(name for kind, name, *_ in self.nodes if kind == "cookie")
        for store in getattr(self, "stores", ()):
            assert self.run(store.list_cookies()) == wanted


class MemoryMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = MemoryCluster("model", clock=FixedClock(), rng=random.Random(1))
        self.cluster.initialise()

    async def open_store(self) -> MetadataStore:
        return MemoryStore(self.cluster)


class SqliteMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="quire-model-"))

    async def open_store(self) -> MetadataStore:
        return await SqliteStore.open(
            self.directory / "model.db", create=True, clock=FixedClock(), rng=random.Random()
        )

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]

TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=CHECKS
)
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=CHECKS
)
