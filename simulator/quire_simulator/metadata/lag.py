"""A server of the metadata store that lags behind the others, as one of ZooKeeper may.

A session is connected to one server. Reads show the state that this server has, which may be some
seconds old. A server catches up with each change that the session asks for, even if it is refused,
because the servers of ZooKeeper decide all changes in one order. It also catches up with a `sync`,
and the ZooKeeper driver asks for one before it calls something missing. A session never sees an
older state than before. Conditions of changes are compared with the newest state.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from quire.errors import NoSuchKeyError, NoSuchLedgerError
from quire_simulator.metadata.items import MemoryPresence, StoredItem
from quire_simulator.metadata.nodes import Nodes

T = TypeVar("T")

LAG_MAX_S = 10.0
"""The longest lag. ZooKeeper drops a server that is further behind."""

UP_TO_DATE = 0.4
"""The probability that the server of a session does not lag, although others do."""

LAGS_S = (0.1, 1.0, LAG_MAX_S)
"""The choices for the longest lag of a session."""

Derive = Callable[[str], random.Random]

SERVED = frozenset(
    ("read_ledger", "read", "bookies", "registered", "learn_bookies", "tree_read", "tree_exists",
     "tree_children")
)  # fmt: skip
"""The calls that the ZooKeeper driver answers from the state of one server."""

SYNCED = frozenset(
    ("list_ledgers", "list_values", "list_cookies", "is_initialised", "instance_id", "tree_sync")
)
"""The calls that change nothing, and before which the server catches up."""


@dataclass(eq=False)
class Readable:
    """What clients can read of a metadata store."""

    ledgers: dict[int, StoredItem]
    ledger_ids: list[int]
    cookies: dict[str, StoredItem]
    values: dict[tuple[str, ...], StoredItem]
    presences: dict[str, MemoryPresence]
    tree: Nodes


@dataclass(eq=False)
class PastState(Readable):
    """What clients could read until some time."""

    until_s: float


READABLE = tuple(one.name for one in fields(Readable))


class History:
    """The states that a metadata store has had recently, in order.

    States are numbered. The present one has the highest number.
    """

    def __init__(self, cluster: Readable) -> None:
        self._cluster = cluster
        self._past: deque[PastState] = deque()
        self._first = 0
        """The number of the oldest state that is kept."""
        self.kept = False
        """Whether states are kept, because some session lags."""

    @property
    def newest(self) -> int:
        """The number of the present state."""
        return self._first + len(self._past)

    def keep(self) -> None:
        """Keep the present state. Call this before each change."""
        if not self.kept:
            return
        cluster, now_s = self._cluster, asyncio.get_running_loop().time()
        self._past.append(
            PastState(
                {id_: replace(item) for id_, item in cluster.ledgers.items()},
                list(cluster.ledger_ids),
                {id_: replace(item) for id_, item in cluster.cookies.items()},
                {key: replace(item) for key, item in cluster.values.items()},
                dict(cluster.presences),
                cluster.tree.snapshot(),
                until_s=now_s,
            )
        )
        while self._past[0].until_s < now_s - LAG_MAX_S:
            self._past.popleft()
            self._first += 1

    def forget(self) -> None:
        """Keep no states from now on, and forget the past ones."""
        self._first = self.newest
        self._past.clear()
        self.kept = False

    def number_at(self, time_s: float) -> int:
        """Return the number of the state at this time, or of the oldest one that is kept."""
        later = (at for at, state in enumerate(self._past) if state.until_s > time_s)
        return self._first + next(later, len(self._past))

    def state(self, number: int) -> PastState | None:
        """Return a state, or None for the present one."""
        return self._past[number - self._first] if number < self.newest else None


class View:
    """What one session sees of the metadata store."""

    def __init__(self, cluster: Readable, history: History, moved: Callable[[], None]) -> None:
        """`moved` is called when the session may see something newer than before."""
        self._cluster = cluster
        self._history = history
        self._moved = moved
        self._seen = 0
        """The number of the newest state that the session has seen."""
        self._lag_s = 0.0
        self.past = False
        """Whether a past state is in the place of the present one just now."""

    @property
    def lag_s(self) -> float:
        """The seconds by which the server of the session is behind."""
        return self._lag_s

    def lag(self, lag_s: float, *, begins: bool = False) -> None:
        """Let the server of the session be behind from now on, or catch up with 0.

        A session that `begins` has not seen the present state yet.
        """
        if not self._lag_s and not begins:
            self._seen = self._history.newest
        self._lag_s = min(lag_s, LAG_MAX_S)
        self._moved()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Put what the session sees in the place of the present state until the end of the
        block.
        """
        if not self._lag_s:
            yield
            return
        past_s = asyncio.get_running_loop().time() - self._lag_s
        self._seen = max(self._seen, self._history.number_at(past_s))
        state = self._history.state(self._seen)
        if state is None:
            yield
            return
        present = {name: getattr(self._cluster, name) for name in READABLE}
        for name in READABLE:
            setattr(self._cluster, name, getattr(state, name))
        self.past = True
        try:
            yield
        finally:
            self.past = False
            for name, value in present.items():
                setattr(self._cluster, name, value)

    def call(self, name: str, work: Callable[[], T]) -> tuple[T, int]:
        """Do the work of a call. Return its result, and what `caught_up` receives later.

        The server has caught up with a change when the answer arrives.
        """
        if name not in SERVED:
            if name not in SYNCED:
                self._history.keep()
            try:
                return work(), self._history.newest
            except BaseException:
                self.caught_up(self._history.newest)
                raise
        try:
            with self.shown():
                found = work()
            if found is not False or not self._lag_s:
                return found, 0
        except (NoSuchKeyError, NoSuchLedgerError):
            if not self._lag_s:
                raise
        self.caught_up(self._history.newest)
        return work(), 0

    def caught_up(self, number: int) -> None:
        """Note that the session has seen the state with this number."""
        if self._lag_s and number > self._seen:
            self._seen = number
            self._moved()


class Lags:
    """The lags that faults have drawn for the sessions of a cluster."""

    def __init__(
        self, history: History, views: Callable[[], Iterable[tuple[str, View]]], derive: Derive
    ) -> None:
        """`views` returns the present sessions with the names of their owners."""
        self._history = history
        self._views = views
        self._derive = derive
        self._faults: list[str] = []

    def begin(self, fault: str) -> Callable[[], None]:
        """Let servers lag, and return a function that lets them catch up."""
        self._faults.append(fault)
        self._apply()

        def end() -> None:
            if fault in self._faults:
                self._faults.remove(fault)
                self._apply()

        return end

    def end_all(self) -> None:
        """Let all servers catch up."""
        if self._faults:
            self._faults.clear()
            self._apply()

    def of(self, owner: str) -> float:
        """Return the seconds by which the server of this client or bookie is behind."""
        return max((self._drawn(fault, owner) for fault in self._faults), default=0.0)

    def _drawn(self, fault: str, owner: str) -> float:
        chance = self._derive(f"lag {fault} {owner}")
        return 0.0 if chance.random() < UP_TO_DATE else chance.random() * chance.choice(LAGS_S)

    def _apply(self) -> None:
        self._history.kept = bool(self._faults)
        for owner, view in self._views():
            if (lag_s := self.of(owner)) != view.lag_s:
                view.lag(lag_s)
        if not self._faults:
            self._history.forget()
