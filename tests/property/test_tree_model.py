"""The trees of the stores behave like a model of dicts, including errors.

Commits go through two stores of one cluster, and watches finally deliver the current state.
"""

from __future__ import annotations

import asyncio
import copy
import random
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.errors import (
    KeyExistsError,
    NoSuchKeyError,
    NotEmptyError,
    QuireError,
    UsageError,
    VersionConflictError,
)
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Result
from quire_simulator.metadata.store import MemoryCluster, MemoryStore
from tests.support.waiting import until

T = TypeVar("T")

STORES = st.sampled_from([0, 1])
PATHS = st.sampled_from(["/a", "/b", "/a/a", "/a/a-", "/a/b", "/b/a", "/a/a/a", "/a/a/b"])
VALUES = st.binary(max_size=2)
VERSIONS = st.sampled_from([-1, -1, 0, 1, 2])
OPERATIONS = st.one_of(
    st.builds(Create, PATHS, VALUES, st.booleans(), st.just(False)),
    st.builds(Create, PATHS, VALUES, st.booleans(), st.booleans()),
    st.builds(Put, PATHS, VALUES, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)


class FixedClock:
    def now_ms(self) -> int:
        return 1_234

    def monotonic(self) -> float:
        return 0.0


@dataclass
class Node:
    value: bytes
    owner: int | None
    version: int = 0
    created: int = 0


class Model:
    """A tree, independent of how it is stored."""

    def __init__(self) -> None:
        self.nodes = {"/": Node(b"", None)}

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        below = (other[len(prefix) :] for other in self.nodes if other.startswith(prefix))
        return sorted(name for name in below if name and "/" not in name)

    def commit(self, operations: list[Operation], owner: int) -> list[Result]:
        before = copy.deepcopy(self.nodes)
        try:
            return [self.apply(operation, owner) for operation in operations]
        except QuireError:
            self.nodes = before
            raise

    def apply(self, operation: Operation, owner: int) -> Result:
        path = operation.path
        if isinstance(operation, Create):
            parent = self.nodes.get(path.rpartition("/")[0] or "/")
            if parent is None:
                raise NoSuchKeyError(path)
            if operation.sequential:
                path += f"{parent.created:010}"
            if path in self.nodes:
                raise KeyExistsError(path)
            if parent.owner is not None:
                raise UsageError(path)
            parent.created += 1
            self.nodes[path] = Node(operation.value, owner if operation.ephemeral else None)
            return path
        node = self.nodes.get(path)
        if node is None:
            raise NoSuchKeyError(path)
        if operation.version not in (-1, node.version):
            raise VersionConflictError(path)
        if isinstance(operation, Put):
            node.value, node.version = operation.value, node.version + 1
            return node.version
        if isinstance(operation, Delete):
            if self.children(path):
                raise NotEmptyError(path)
            del self.nodes[path]
        return None

    def end(self, owner: int) -> None:
        self.nodes = {path: node for path, node in self.nodes.items() if node.owner != owner}


class TreeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()
        self.seen_children: dict[tuple[int, str], list[str] | None] = {}
        self.seen_values: dict[tuple[int, str], Versioned[bytes] | None] = {}

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

    @rule(at=STORES, operations=st.lists(OPERATIONS, max_size=4))
    def commit(self, at: int, operations: list[Operation]) -> None:
        call = self.stores[at].tree.commit(*operations)
        try:
            wanted = self.model.commit(operations, at)
        except QuireError as error:
            with pytest.raises(type(error)):
                self.run(call)
        else:
            assert self.run(call) == wanted

    @rule(at=STORES, path=PATHS)
    def read(self, at: int, path: str) -> None:
        tree = self.stores[at].tree
        node = self.model.nodes.get(path)
        assert self.run(tree.exists(path)) == (node is not None)
        if node is None:
            with pytest.raises(NoSuchKeyError):
                self.run(tree.read(path))
            with pytest.raises(NoSuchKeyError):
                self.run(tree.children(path))
        else:
            assert self.run(tree.read(path)) == Versioned(node.value, node.version)

    @rule(at=STORES, path=PATHS, value=VALUES)
    def make_path(self, at: int, path: str, value: bytes) -> None:
        parts = path.split("/")[1:]
        missing = [
            Create(each, value if each == path else b"")
            for each in ("/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1))
            if each not in self.model.nodes
        ]
        call = self.stores[at].tree.make_path(path, value)
        try:
            self.model.commit([*missing], at)
        except UsageError:
            with pytest.raises(UsageError):
                self.run(call)
        else:
            self.run(call)

    @rule(at=STORES, path=PATHS)
    def delete_tree(self, at: int, path: str) -> None:
        self.run(self.stores[at].tree.delete_tree(path))
        self.model.nodes = {
            other: node
            for other, node in self.model.nodes.items()
            if other != path and not other.startswith(path + "/")
        }

    @rule(at=STORES)
    def close_and_open(self, at: int) -> None:
        """Everything ephemeral ends with its session, and all else stays."""
        self.run(self.stores[at].close())
        self.stores[at] = self.run(self.open_store())
        self.model.end(at)
        for key in [key for key in self.seen_children if key[0] == at]:
            del self.seen_children[key], self.seen_values[key]

    @rule(at=STORES, path=PATHS)
    def watch(self, at: int, path: str) -> None:
        if (at, path) not in self.seen_children:
            self.seen_children[at, path] = ["not told yet"]
            self.seen_values[at, path] = Versioned(b"not told yet", -1)
            self.run(self.begin_to_watch(at, path))

    async def begin_to_watch(self, at: int, path: str) -> None:
        tree = self.stores[at].tree
        tree.watch_children(path, lambda names: self.seen_children.update({(at, path): names}))
        tree.watch_value(path, lambda value: self.seen_values.update({(at, path): value}))

    @rule()
    def watches_end_up_with_what_there_is(self) -> None:
        def settled() -> bool:
            return all(
                names == (self.model.children(path) if path in self.model.nodes else None)
                for (_, path), names in self.seen_children.items()
            ) and all(
                value == (None if node is None else Versioned(node.value, node.version))
                for (_, path), value in self.seen_values.items()
                for node in [self.model.nodes.get(path)]
            )

        self.run(until(settled))

    @invariant()
    def trees_agree(self) -> None:
        for store in getattr(self, "stores", ()):
            assert self.run(found_below(store, "/")) == {
                path: (node.value, node.version) for path, node in self.model.nodes.items()
            }


async def found_below(store: MetadataStore, path: str) -> dict[str, tuple[bytes, int]]:
    now = await store.tree.read(path)
    found = {path: (now.value, now.version)}
    for name in await store.tree.children(path):
        found.update(await found_below(store, f"{path.rstrip('/')}/{name}"))
    return found


class MemoryMachine(TreeMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = MemoryCluster("model", clock=FixedClock(), rng=random.Random(1))

    async def open_store(self) -> MetadataStore:
        return MemoryStore(self.cluster)

    @rule(at=STORES)
    def lose_session(self, at: int) -> None:
        store = self.stores[at]
        assert isinstance(store, MemoryStore)

        async def lose() -> None:
            before = store.tree.session_id
            store.expire_session()
            await until(lambda: store.tree.session_id != before)

        self.run(lose())
        self.model.end(at)


class SqliteMachine(TreeMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="quire-tree-"))

    async def open_store(self) -> MetadataStore:
        return await SqliteStore.open(
            self.directory / "model.db",
            create=True,
            clock=FixedClock(),
            rng=random.Random(),
            session_timeout_ms=3_600_000,
            watch_poll_s=0.005,
        )

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]

TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=CHECKS
)
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=CHECKS
)
