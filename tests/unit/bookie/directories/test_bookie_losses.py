"""A bookie that lost a segment reports former entries and fences as unknown."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.bookie.background.complete_ledger import is_complete
from quire.bookie.protocol.answer_budget import Account
from quire.bookie.protocol.service import BookieService
from quire.codec.entry.digest import master_key
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.wire.v2 import HIGH_PRIORITY, LAST_ENTRY, RECOVERY_ADD, Code
from quire.config import BookieConfig
from quire.net.network import AsyncioNetwork
from quire.storage.segment.segment import segment_name
from tests.support.storage.storage import (
    StoreOnDisk,
    disk_of,
    entries,
    fill_segments,
    key_of,
    opened,
)

LEDGER = 7


KEY = master_key(b"")
"""The key of a ledger with the password of `elsewhere`."""


def quiet(event: str, **fields: object) -> None:
    pass


def with_a_ledger() -> StoreOnDisk:
    """Its key and its entries stand in the first segment, which is full."""
    box = opened()
    box.append(entries(LEDGER, 0, 3))
    box.pump()
    fill_segments(box, 1, 1)
    return box


def with_a_loss(box: StoreOnDisk) -> BookieService:
    """The first segment is gone."""
    box.append(entries(1, 10_000, 1))
    box.idle()
    box.close()
    disk_of(box).remove(segment_name(1))
    assert box.open().negatives_unknown
    store: Any = box.store
    service = BookieService(store, BookieConfig(), box.clock, AsyncioNetwork(), quiet)
    service.writable = store.all_writable
    return service


class Said(int):
    """An answer of one byte: its code."""

    def __len__(self) -> int:
        return 1


class Asked:
    """A request for one entry."""

    max_count, max_bytes = 1, 0
    connection = SimpleNamespace(account=Account(cast(Any, None)))

    def __init__(self, entry_id: int) -> None:
        self.ledger_id, self.entry_id = LEDGER, entry_id

    def failed(self, code: int) -> Said:
        return Said(code)

    def found(self, found: object) -> Said:
        return Said(Code.OK)


@pytest.mark.parametrize("how", ["not known", "fenced by a recovery", "its fence is there"])
async def test_a_bookie_with_a_loss_does_not_deny_a_last_entry(how: str) -> None:
    box = with_a_ledger()
    if how == "its fence is there":
        box.fence(LEDGER)
    service = with_a_loss(box)
    if how == "fenced by a recovery":
        answers: list[int] = []
        assert service.fence(LEDGER, key_of(LEDGER), answers.append) == Code.OK
        box.idle()
        assert answers == [Code.OK]
    for entry_id in (0, LAST_ENTRY):
        asked: Any = Asked(entry_id)
        answer: Any = service.answer(asked)
        assert answer == Code.UNKNOWN_LEDGER_STATE


async def test_no_writer_gets_past_a_fence_that_may_be_lost() -> None:
    box = opened()
    box.append(entries(LEDGER, 0, 3))
    box.fence(LEDGER)
    box.pump()
    fill_segments(box, 1, 1)
    service = with_a_loss(box)
    for flags in (0, HIGH_PRIORITY):
        assert service.may_add(LEDGER, key_of(LEDGER), flags) == Code.READ_ONLY
    for flags in (RECOVERY_ADD, RECOVERY_ADD | HIGH_PRIORITY):
        expected = Code.OK if flags & HIGH_PRIORITY else Code.READ_ONLY
        assert service.may_add(LEDGER, key_of(LEDGER), flags) == expected


@pytest.mark.parametrize("left", ["nothing", "its fence", "its explicit LAC"])
async def test_copies_restore_a_ledger_whatever_was_left_of_it(left: str) -> None:
    """The key of the ledger was in the lost part of the log."""
    box = with_a_ledger()
    if left == "its fence":
        box.fence(LEDGER)
    elif left == "its explicit LAC":
        box.store.write_explicit_lac(LEDGER, bytes(40), lambda error: None)
    service = with_a_loss(box)
    # What an autorecovery worker does.
    code = service.may_add(LEDGER, key_of(LEDGER), RECOVERY_ADD | HIGH_PRIORITY)
    assert code == Code.OK
    box.append(entries(LEDGER, 0, 3), reserve=True)
    box.idle()
    metadata = LedgerMetadata(
        1, 1, 1, (Segment(0, ("me",)),), state=LedgerState.CLOSED, last_entry_id=2, length=300,
        password=b"",
    )  # fmt: skip
    looking = asyncio.ensure_future(is_complete(box.store, LEDGER, metadata, "me"))
    for _ in range(20):
        await asyncio.sleep(0)
        box.idle()
    assert looking.done()
    assert looking.result()
    assert service.may_add(LEDGER, b"another key".ljust(20), RECOVERY_ADD | HIGH_PRIORITY) == (
        Code.UNAUTHORIZED
    )
    disk_of(box).kill()
    box.open()
    assert box.store.ledgers[LEDGER].master_key == key_of(LEDGER)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED])
@pytest.mark.parametrize("left", ["its fence", "its explicit LAC"])
async def test_a_lost_key_is_restored_without_copied_entries(left: str, state: LedgerState) -> None:
    """The simulator found this (`log files` 1989353200): nothing else was missing, so no copy with
    the key ever arrived, and the bookie refused the ledger for good after the loss was repaired.
    """
    box = with_a_ledger()
    if left == "its fence":
        box.fence(LEDGER)
    else:
        box.store.write_explicit_lac(LEDGER, bytes(40), lambda error: None)
    service = with_a_loss(box)
    assert service.fence(LEDGER, KEY, lambda code: None) == Code.UNKNOWN_LEDGER_STATE
    await whole(box, elsewhere(state), recoveries_over=True)
    box.store.mark_repaired(lambda error: None)
    box.idle()
    service.writable = True
    assert service.may_add(LEDGER, b"another key".ljust(20), RECOVERY_ADD) == Code.UNAUTHORIZED
    fenced = left == "its fence" or state is LedgerState.CLOSED
    assert service.may_add(LEDGER, KEY, 0) == (Code.FENCED if fenced else Code.OK)
    assert service.fence(LEDGER, KEY, lambda code: None) == Code.OK
    box.idle()
    disk_of(box).kill()
    box.open()
    assert box.store.ledgers[LEDGER].master_key == KEY


# -- ledgers that do not name the bookie ----------------------------------------------------------


def elsewhere(state: LedgerState) -> LedgerMetadata:
    last = 2 if state is LedgerState.CLOSED else -1
    return LedgerMetadata(
        1, 1, 1, (Segment(0, ("another",)),), state=state, last_entry_id=last, password=b""
    )


async def whole(box: StoreOnDisk, metadata: LedgerMetadata, **how: bool) -> bool:
    looking = asyncio.ensure_future(is_complete(box.store, LEDGER, metadata, "me", **how))
    for _ in range(20):
        await asyncio.sleep(0)
        box.idle()
    return looking.result()


@pytest.mark.parametrize("known", [True, False])
async def test_the_writer_of_a_ledger_that_was_closed_elsewhere_is_refused(known: bool) -> None:
    """A recovery fenced this bookie, which lost the fence, and closed the ledger on others.

    The exploration found this (`closed_by_recovery` with a bookie that the recovery replaced): the
    old writer completed an ack quorum here, with a member that nobody had fenced.
    """
    box = with_a_ledger()
    service = with_a_loss(box)
    if known:
        assert service.may_add(LEDGER, key_of(LEDGER), RECOVERY_ADD | HIGH_PRIORITY) == Code.OK
    assert await whole(box, elsewhere(LedgerState.CLOSED))
    box.store.mark_repaired(lambda error: None)
    service.writable = True
    for start in ("running", "started again"):
        assert service.may_add(LEDGER, key_of(LEDGER), 0) == Code.FENCED, start
        box.idle()
        disk_of(box).kill()
        box.open()
        service.store = box.store
    assert service.may_add(LEDGER, key_of(LEDGER), RECOVERY_ADD) == Code.OK
    assert service.may_add(LEDGER, key_of(LEDGER), 0) == Code.FENCED
    assert service.may_add(LEDGER + 1, key_of(LEDGER + 1), 0) == Code.OK


@pytest.mark.parametrize("count", [0, 3], ids=["without entries", "copied again"])
async def test_the_writer_of_a_closed_ledger_that_names_the_bookie_is_refused(count: int) -> None:
    """A recovery fenced this bookie, which lost the fence, and closed the ledger on it."""
    box = with_a_ledger()
    service = with_a_loss(box)
    if count:
        assert service.may_add(LEDGER, KEY, RECOVERY_ADD | HIGH_PRIORITY) == Code.OK
        box.append(entries(LEDGER, 0, count), reserve=True)
        box.idle()
    closed = LedgerMetadata(
        1, 1, 1, (Segment(0, ("me",)),), state=LedgerState.CLOSED, last_entry_id=count - 1,
        password=b"",
    )  # fmt: skip
    assert await whole(box, closed)
    box.store.mark_repaired(lambda error: None)
    service.writable = True
    for start in ("running", "started again"):
        assert service.may_add(LEDGER, KEY, 0) == Code.FENCED, start
        assert service.may_add(LEDGER, KEY, RECOVERY_ADD) == Code.OK, start
        box.idle()
        disk_of(box).kill()
        box.open()
        service.store = box.store


async def test_a_ledger_in_recovery_may_have_entries_on_bookies_it_does_not_name() -> None:
    """The ensemble of a recovery is private until it closes the ledger.

    The exploration found this: the recovery closed the ledger with one copy less than the ack
    quorum, and the bookie denied what it had acknowledged to it.
    """
    box = with_a_ledger()
    with_a_loss(box)
    assert not await whole(box, elsewhere(LedgerState.IN_RECOVERY))
    assert await whole(box, elsewhere(LedgerState.IN_RECOVERY), recoveries_over=True)
    assert await whole(box, elsewhere(LedgerState.OPEN))
