"""The codes of a bookie's answers, by the state of its store.

"No such entry" and "no such ledger" are said only if that is certain. A ledger that may have been
fenced takes nothing from its former writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from quire.bookie.protocol.service import BookieService, PendingRead
from quire.codec.wire.v2 import HIGH_PRIORITY, LAST_ENTRY, RECOVERY_ADD, Code
from quire.config import BookieConfig
from quire.errors import DiskFullError, StorageError
from quire.net.network import AsyncioNetwork
from quire.storage.directories import Store
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from tests.support.storage.storage import HandClock

LEDGER = 7
KEY, OTHER_KEY = b"k" * 20, b"o" * 20
FLAGS = (0, RECOVERY_ADD, HIGH_PRIORITY, RECOVERY_ADD | HIGH_PRIORITY)
Done = Callable[[StorageError | None], None]


@dataclass
class Info:
    """A ledger of the store."""

    master_key: bytes = KEY
    fenced: bool = False
    last_add_confirmed: int = -1


@dataclass
class StubStore:
    """A store whose state the test sets, and which records what is changed."""

    ledgers: dict[int, Info] = field(default_factory=dict)
    failed: StorageError | None = None
    lost: bool = False
    unknown: bool = False
    refused: bool = False
    takes_it: bool = False
    last: int = -1
    error: StorageError | None = None
    """The result of changes that should become durable."""
    raises: Exception | None = None
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    on_drained: Callable[[], None] = lambda: None
    early: tuple[()] = ()

    def is_lost(self, ledger_id: int) -> bool:
        return self.lost

    def absence_unknown(self, ledger_id: int) -> bool:
        return self.unknown

    def is_refused(self, ledger_id: int) -> bool:
        return self.refused

    def takes(self, ledger_id: int) -> bool:
        return self.takes_it

    def create_ledger(self, ledger_id: int, key: bytes, *, again: bool = False) -> None:
        self.calls.append(("create", key, again))
        self.ledgers[ledger_id] = Info(key)

    def adopt_key(self, ledger_id: int, key: bytes) -> None:
        self.calls.append(("adopt", key))
        self.ledgers[ledger_id].master_key = key

    def fence(self, ledger_id: int, done: Done) -> None:
        self.calls.append(("fence", ledger_id))
        self.ledgers[ledger_id].fenced = True
        done(self.error)

    def write_explicit_lac(self, ledger_id: int, packet: bytes, done: Done) -> None:
        if self.raises is not None:
            raise self.raises
        self.calls.append(("lac", packet))
        done(self.error)

    def last_entry_id(self, ledger_id: int) -> int:
        if ledger_id not in self.ledgers:
            raise NoLedger
        return self.last

    def read(self, ledger_id: int, *how: int) -> Any:
        raise self.raises or NoEntry()

    async def entry_ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        if isinstance(self.raises, StorageError):
            raise self.raises
        if self.raises is not None:
            raise NoLedger  # a ledger that is here has a list, if only an empty one
        return [(0, 4)]


def service(store: StubStore, **state: bool) -> BookieService:
    made = BookieService(
        cast(Store, store), BookieConfig(), HandClock(), AsyncioNetwork(), lambda *a, **k: None
    )
    for name, value in state.items():
        setattr(made, name, value)
    return made


def known(**info: Any) -> StubStore:
    return StubStore({LEDGER: Info(**info)})


# -- adds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", FLAGS)
def test_an_add_is_accepted_if_there_is_no_reason_to_refuse_it(flags: int) -> None:
    """An unknown ledger is created, and one that was dropped comes back only for a copy."""
    for store in (known(), StubStore()):
        new = not store.ledgers
        made = service(store)
        assert made.may_add(LEDGER, KEY, flags) == Code.OK
        assert store.calls == ([("create", KEY, bool(flags & RECOVERY_ADD))] if new else [])
        assert made.counters.adds_refused == 0


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize(
    ("store", "state", "code"),
    [
        (lambda: known(), {"loading": True}, Code.READ_ONLY),
        (lambda: StubStore(failed=StorageError("disk")), {}, Code.IO_ERROR),
        (lambda: StubStore(lost=True), {}, Code.IO_ERROR),
        (lambda: known(master_key=OTHER_KEY), {}, Code.UNAUTHORIZED),
    ],
    ids=["loading", "failed", "lost", "wrong key"],
)
def test_an_add_is_refused_whatever_its_flags(
    flags: int, store: Callable[[], StubStore], state: dict[str, bool], code: Code
) -> None:
    there = store()
    made = service(there, **state)
    assert made.may_add(LEDGER, KEY, flags) == code
    assert there.calls == []
    assert made.counters.adds_refused == 1


@pytest.mark.parametrize("flags", FLAGS)
def test_a_fence_keeps_the_writer_out_and_lets_recovery_in(flags: int) -> None:
    """A fence that may be lost has the same effect, and so has the refusal of a deleted ledger."""
    recovery = bool(flags & RECOVERY_ADD)
    assert service(known(fenced=True)).may_add(LEDGER, KEY, flags) == (
        Code.OK if recovery else Code.FENCED
    )
    for store in (known(), StubStore()):
        store.unknown = True
        assert service(store).may_add(LEDGER, KEY, flags) == (
            Code.OK if recovery else Code.READ_ONLY
        )
        assert recovery or not store.calls
    deleted = StubStore(refused=True)
    assert service(deleted).may_add(LEDGER, KEY, flags) == (Code.OK if recovery else Code.FENCED)
    assert deleted.calls == ([("create", KEY, True)] if recovery else [])


@pytest.mark.parametrize("flags", FLAGS)
def test_a_full_bookie_accepts_only_high_priority_adds(flags: int) -> None:
    """Recovery marks these adds as of high priority. Other copies go to other bookies."""
    urgent = bool(flags & HIGH_PRIORITY)
    assert service(known(), writable=False).may_add(LEDGER, KEY, flags) == (
        Code.OK if urgent else Code.READ_ONLY
    )
    for takes in (False, True):
        store = known()
        store.takes_it = takes
        some = service(store, writable=False, partly_writable=True)
        assert some.may_add(LEDGER, KEY, flags) == (Code.OK if urgent or takes else Code.READ_ONLY)


@pytest.mark.parametrize("flags", FLAGS)
def test_a_lost_key_is_restored_by_a_copy_and_not_by_a_writer(flags: int) -> None:
    store = known(master_key=b"")
    code = service(store).may_add(LEDGER, KEY, flags)
    if flags & RECOVERY_ADD:
        assert (code, store.calls) == (Code.OK, [("adopt", KEY)])
    else:
        assert (code, store.calls) == (Code.IO_ERROR, [])


@pytest.mark.parametrize("flags", FLAGS)
def test_invalid_ids_and_keys_create_no_ledger(flags: int) -> None:
    store = StubStore()
    assert service(store).may_add(-1, KEY, flags) == Code.BAD_REQUEST
    for key in (b"", KEY + b"x", KEY[1:]):
        assert service(store).may_add(LEDGER, key, flags) == Code.UNAUTHORIZED
    assert store.ledgers == {}


# -- fences and explicit LACs -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "state", "code"),
    [
        (lambda: known(), {"loading": True}, Code.TOO_MANY_REQUESTS),
        (lambda: StubStore(failed=StorageError("disk")), {}, Code.IO_ERROR),
        (lambda: known_but_lost(), {}, Code.IO_ERROR),
        (lambda: known(master_key=OTHER_KEY), {}, Code.UNAUTHORIZED),
        (lambda: known(master_key=b""), {}, Code.UNKNOWN_LEDGER_STATE),
        (lambda: StubStore(refused=True), {}, Code.NO_LEDGER),
    ],
    ids=["loading", "failed", "lost", "wrong key", "key lost", "deleted"],
)
def test_a_refused_fence_changes_nothing(
    store: Callable[[], StubStore], state: dict[str, bool], code: Code
) -> None:
    there, answers = store(), []
    made = service(there, **state)
    assert made.fence(LEDGER, KEY, answers.append) == code
    assert (there.calls, answers, made.counters.fences) == ([], [], 0)


def known_but_lost() -> StubStore:
    store = known()
    store.lost = True
    return store


@pytest.mark.parametrize("writable", [True, False])
def test_a_fence_is_answered_once_it_is_durable(*, writable: bool) -> None:
    """This also holds on a full bookie, and for a ledger that the bookie does not have yet."""
    for store in (known(), StubStore()):
        new = not store.ledgers
        answers: list[int] = []
        made = service(store, writable=writable)
        assert made.fence(LEDGER, KEY, answers.append) == Code.OK
        assert answers == [Code.OK]
        assert store.calls == [("create", KEY, False)] * new + [("fence", LEDGER)]
        assert made.may_add(LEDGER, KEY, HIGH_PRIORITY) == Code.FENCED


@pytest.mark.parametrize(
    ("error", "code"), [(StorageError("x"), Code.IO_ERROR), (DiskFullError("x"), Code.READ_ONLY)]
)
def test_a_change_that_is_not_durable_is_answered_with_its_error(
    error: StorageError, code: Code
) -> None:
    store, answers = known(), []
    store.error = error
    made = service(store)
    assert made.fence(LEDGER, KEY, answers.append) == Code.OK
    assert made.write_lac(LEDGER, 5, KEY, b"packet", answers.append) == Code.OK
    assert answers == [code, code]
    store.raises = error
    assert made.write_lac(LEDGER, 9, KEY, b"packet", answers.append) == code
    assert len(answers) == 2
    assert made.last_add_confirmed(LEDGER) == 5


@pytest.mark.parametrize(
    ("store", "state", "code"),
    [
        (lambda: known(), {"loading": True}, Code.READ_ONLY),
        (lambda: StubStore(failed=StorageError("disk")), {}, Code.IO_ERROR),
        (lambda: known_but_lost(), {}, Code.IO_ERROR),
        (lambda: known(), {"writable": False}, Code.READ_ONLY),
        (lambda: known(master_key=OTHER_KEY), {}, Code.UNAUTHORIZED),
        (lambda: known(master_key=b""), {}, Code.IO_ERROR),
        (lambda: StubStore(refused=True), {}, Code.NO_LEDGER),
    ],
    ids=["loading", "failed", "lost", "full", "wrong key", "key lost", "deleted"],
)
def test_a_refused_explicit_lac_changes_nothing(
    store: Callable[[], StubStore], state: dict[str, bool], code: Code
) -> None:
    there, answers = store(), []
    made = service(there, **state)
    assert made.write_lac(LEDGER, 5, KEY, b"packet", answers.append) == code
    assert (there.calls, answers) == ([], [])
    assert made.last_add_confirmed(LEDGER) == -1


def test_an_explicit_lac_moves_the_lac_only_forward_even_of_a_fenced_ledger() -> None:
    store, answers = known(fenced=True, last_add_confirmed=5), []
    made = service(store)
    for lac, expected in ((3, 5), (5, 5), (6, 6), (2, 6)):
        assert made.write_lac(LEDGER, lac, KEY, b"%d" % lac, answers.append) == Code.OK
        assert made.last_add_confirmed(LEDGER) == expected
    assert answers == [Code.OK] * 4
    assert [packet for _, packet in store.calls] == [b"3", b"5", b"6", b"2"]
    assert made.last_add_confirmed(99) == -1


# -- reads ------------------------------------------------------------------------------------


class Read(PendingRead):
    """A read that is answered with its code."""

    def __init__(self, entry_id: int) -> None:
        self.connection = cast(Any, None)
        self.ledger_id, self.entry_id = LEDGER, entry_id

    def failed(self, code: int) -> bytes:
        return b"%d" % code


@pytest.mark.parametrize("error", [NoEntry, NoLedger])
@pytest.mark.parametrize(
    ("store", "state", "code"),
    [
        ({}, {}, None),
        ({}, {"loading": True}, Code.TOO_MANY_REQUESTS),
        ({"lost": True}, {}, Code.IO_ERROR),
        ({"unknown": True}, {}, Code.UNKNOWN_LEDGER_STATE),
        ({"lost": True, "unknown": True}, {}, Code.IO_ERROR),
        ({"lost": True, "unknown": True}, {"loading": True}, Code.TOO_MANY_REQUESTS),
    ],
)
async def test_absence_is_reported_only_if_it_is_certain(
    error: type[Exception], store: dict[str, bool], state: dict[str, bool], code: Code | None
) -> None:
    """This also holds for the last entry, for unknown ledgers, and for lists of entries.

    A list of entries is not counted as a read.
    """
    certain = Code.NO_LEDGER if error is NoLedger else Code.NO_ENTRY
    expected = certain if code is None else code
    there = StubStore({LEDGER: Info()}, raises=error(), **store)  # type: ignore[arg-type]
    made = service(there, **state)
    assert made.code_of_missing(error(), LEDGER) == expected
    assert made._look_up(Read(3)) == b"%d" % expected
    listed = Code.NO_LEDGER if code is None else code
    assert await made.entry_ranges(LEDGER) == (listed, [])
    counters = made.counters
    missing = code in (None, Code.UNKNOWN_LEDGER_STATE)
    assert (counters.reads_missing, counters.reads_failed) == ((1, 0) if missing else (0, 1))
    if error is NoEntry:
        assert made._look_up(Read(LAST_ENTRY)) == b"%d" % expected
    else:
        del there.ledgers[LEDGER]
        assert made._look_up(Read(LAST_ENTRY)) == b"%d" % expected
    assert (counters.reads_missing, counters.reads_failed) == ((2, 0) if missing else (0, 2))


async def test_damage_is_not_reported_as_absence() -> None:
    there = known()
    there.raises = StorageError("a block does not match its checksum")
    made = service(there)
    assert made._look_up(Read(3)) == b"%d" % Code.IO_ERROR
    assert await made.entry_ranges(LEDGER) == (Code.IO_ERROR, [])
    assert (made.counters.reads_missing, made.counters.reads_failed) == (0, 1)
    there.raises = None
    assert await made.entry_ranges(LEDGER) == (Code.OK, [(0, 4)])


def test_a_negative_entry_id_is_refused_unless_it_means_the_last_entry() -> None:
    made = service(known())
    assert made._look_up(Read(-7)) == b"%d" % Code.BAD_REQUEST
    assert made._look_up(Read(LAST_ENTRY)) == b"%d" % Code.NO_ENTRY
