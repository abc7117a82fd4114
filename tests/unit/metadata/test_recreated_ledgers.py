"""A ledger is deleted and recreated with its id. Nobody changes the new one by mistake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quire.client import Client
from quire.codec.entry.entry import Entry
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.config import ClientConfig
from quire.core.fragments import fragments
from quire.errors import LedgerRecreatedError, NoSuchLedgerError, UnauthorizedError
from quire.metadata.interface import Versioned
from quire.metadata.ledgers.creation import check_seen, same_creation, see_ledger
from quire.metadata.ledgers.update import update_ledger
from quire.replication.repair.bookie_removal import OpenLedgerState
from quire.replication.repair.fragment import CopyOutcome
from quire.replication.repair.opened_ledger import open_for_repair
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.bookie import memory_metadata, running_bookie
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    FakeCluster,
    created,
    payload,
    simulated,
)
from tests.support.metadata.lagging import LaggingServer
from tests.support.replication import replicate_fragment
from tests.support.waiting import until

ENSEMBLE = ("b0", "b1", "b2")


def stored_form(version: int, state: LedgerState = LedgerState.OPEN) -> LedgerMetadata:
    """The metadata of an open ledger, in a format with or without a creation token."""
    return LedgerMetadata(
        3,
        3,
        2,
        (Segment(0, ENSEMBLE),),
        state=state,
        password=PASSWORD,
        ctoken=random.Random(version).getrandbits(63) if version == 3 else 0,
        format_version=version,
    )


async def recreate(store: MemoryStore, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
    """Delete the ledger, and create another one a moment later."""
    old = (await store.read_ledger(LEDGER)).value
    await store.delete_ledger(LEDGER)
    await asyncio.sleep(0.01)
    new = replace(old, state=LedgerState.OPEN, last_entry_id=-1, length=0, ctime_ms=-1)
    await store.create_ledger(change(new), LEDGER)


def other_token(metadata: LedgerMetadata) -> LedgerMetadata:
    return replace(metadata, ctoken=metadata.ctoken + 1)


def same(metadata: LedgerMetadata) -> LedgerMetadata:
    """The bytes of the former ledger: only the store knows that it is another one."""
    return metadata


FORMS = pytest.mark.parametrize(
    ("version", "change"), [(3, other_token), (2, same)], ids=["token", "no token"]
)


@FORMS
def test_a_writer_does_not_close_the_new_ledger(
    version: int, change: Callable[[LedgerMetadata], LedgerMetadata]
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client(replace(CONFIG, ledger_metadata_version=version)) as client:
            writer = await created(client)
            await writer.append(payload(0))
            await recreate(cluster.store, change)
            with pytest.raises(LedgerRecreatedError, match="ledger 7 was deleted") as failed:
                await writer.close()
            assert failed.value.outcome_known
        assert (await cluster.stored()).state is LedgerState.OPEN

    simulated(main)


@FORMS
def test_a_writer_does_not_change_the_ensemble_of_the_new_ledger(
    version: int, change: Callable[[LedgerMetadata], LedgerMetadata]
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client(replace(CONFIG, ledger_metadata_version=version)) as client:
            writer = await created(client)
            await writer.append(payload(0))
            await recreate(cluster.store, change)
            cluster[writer.metadata.last_segment.ensemble[0]].die()
            writer.submit(payload(1))
            await until(lambda: writer.closed)
            with pytest.raises(LedgerRecreatedError):
                await writer.close()
        stored = await cluster.stored()
        assert (stored.state, len(stored.segments)) == (LedgerState.OPEN, 1)

    simulated(main)


def test_a_conflict_with_the_new_ledger_is_reported_as_a_recreation() -> None:
    """The new ledger has another version, so that the compare-and-swap fails first."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await created(client)
            await writer.append(payload(0))
            await recreate(cluster.store, other_token)
            current = await cluster.store.read_ledger(LEDGER)
            await update_ledger(
                cluster.store, LEDGER, current, lambda now: replace(now, custom={"a": b"b"})
            )
            with pytest.raises(LedgerRecreatedError):
                await writer.close()
        assert (await cluster.stored()).state is LedgerState.OPEN

    simulated(main)


def test_a_writer_that_watches_its_ledger_stops_at_once() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        config = replace(CONFIG, watch_written_ledgers=True)
        async with cluster.client(config) as client:
            writer = await created(client)
            await writer.append(payload(0))
            other = other_token((await cluster.store.read_ledger(LEDGER)).value)
            # This happens between two checks of the watch, which sees only the new ledger.
            cluster.store.cluster.ledgers.pop(LEDGER)
            cluster.store.cluster.ledger_ids.remove(LEDGER)
            await cluster.store.create_ledger(other, LEDGER)
            cluster.store.cluster.ledger_changed(LEDGER)
            await until(lambda: writer.closed)
            assert isinstance(writer._session.failure, LedgerRecreatedError)

    simulated(main)


def test_a_reader_of_the_old_ledger_does_not_adopt_the_new_one() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await created(client)
            await writer.append(payload(0))
            await writer.append(payload(1))
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            tail = asyncio.ensure_future(_all(reader.tail(5)))
            await until(lambda: len(client._feeds) == 1)
            await recreate(cluster.store, other_token)
            with pytest.raises(LedgerRecreatedError):
                await reader.refresh()
            with pytest.raises((LedgerRecreatedError, NoSuchLedgerError)):
                await tail
            # Another reader follows the new ledger, whatever the old one does.
            await client.open_ledger(LEDGER, password=PASSWORD)
            writer.abandon()

    simulated(main)


def test_a_reader_that_follows_the_old_ledger_gets_an_error() -> None:
    """It would wait for ever, or be given entries of another ledger."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await created(client)
            for entry_id in range(2):
                await writer.append(payload(entry_id))
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            tail = asyncio.ensure_future(_all(reader.tail(5)))
            await until(lambda: len(client._feeds) == 1)
            other = other_token((await cluster.store.read_ledger(LEDGER)).value)
            # This happens between two checks of the watch, which sees only the new ledger.
            cluster.store.cluster.ledgers.pop(LEDGER)
            cluster.store.cluster.ledger_ids.remove(LEDGER)
            await cluster.store.create_ledger(other, LEDGER)
            cluster.store.cluster.ledger_changed(LEDGER)
            with pytest.raises(LedgerRecreatedError):
                await asyncio.wait_for(tail, 5)
            writer.abandon()

    simulated(main)


async def _all(entries: AsyncIterator[Entry]) -> None:
    async for _ in entries:
        pass


def test_recovery_does_not_close_the_new_ledger() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        async with cluster.client() as client:
            silent = [cluster[name] for name in ENSEMBLE]
            for bookie in silent:
                bookie.answers_in_s = 1
            recovery = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            await until(lambda: silent[0].fenced)
            await recreate(cluster.store, other_token)
            with pytest.raises(LedgerRecreatedError):
                await recovery
        stored = await cluster.stored()
        assert (stored.state, stored.last_entry_id) == (LedgerState.OPEN, -1)

    simulated(main)


@FORMS
def test_a_repair_detects_that_its_ledger_was_recreated(
    version: int, change: Callable[[LedgerMetadata], LedgerMetadata]
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        closed = stored_form(version).with_close(-1, 0)
        await cluster.store.create_ledger(closed, LEDGER)
        async with cluster.client() as client:
            ledger = await open_for_repair(client, LEDGER)
            seen = OpenLedgerState.of(ledger)
            fragment = fragments(ledger.metadata, ledger.last_add_confirmed)[0]
            await recreate(cluster.store, change)
            copied = await replicate_fragment(client, ledger, fragment, {0: "b3"})
            assert copied.outcome is CopyOutcome.CONFLICT
            assert OpenLedgerState.of(await open_for_repair(client, LEDGER)) != seen
        assert (await cluster.stored()).segments[0].ensemble == ENSEMBLE

    simulated(main)


def test_creations_are_distinguished_by_token_time_or_password() -> None:
    token = Versioned(stored_form(3), 0, created=1)
    rewritten = Versioned(replace(token.value, ctoken=0), 4, created=1)
    assert same_creation(token, replace(token, version=9))
    assert same_creation(token, rewritten)  # Java drops the token
    assert not same_creation(token, replace(rewritten, created=2))
    assert same_creation(token, replace(token, created=2))  # a tree that was restored
    assert not same_creation(token, Versioned(other_token(token.value), 0, created=1))
    plain = Versioned(replace(stored_form(2), ctime_ms=5), 0)
    assert same_creation(plain, plain)
    assert not same_creation(plain, replace(plain, value=replace(plain.value, ctime_ms=6)))
    assert not same_creation(plain, replace(plain, value=replace(plain.value, password=b"x")))


# -- passwords that the metadata does not have --------------------------------------------------


def first_format(bookie_id: str) -> LedgerMetadata:
    return LedgerMetadata(
        1, 1, 1, (Segment(0, (bookie_id,)),), digest=None, password=None, format_version=1
    )


async def test_an_empty_ledger_of_format_1_is_not_closed_with_an_unknown_password(
    tmp_path: Path,
) -> None:
    metadata = memory_metadata()
    async with running_bookie(tmp_path / "bookie", metadata=metadata) as bookie:
        await metadata.create_ledger(first_format(bookie.bookie_id), LEDGER)
        client = Client(metadata, config=ClientConfig())
        with pytest.raises(UnauthorizedError, match="cannot be checked") as failed:
            await client.open_ledger(LEDGER, password=b"wrong", recover=True)
        assert failed.value.outcome_known
        stored = await metadata.read_ledger(LEDGER)
        assert (stored.value.state, stored.version) == (LedgerState.OPEN, 0)
        # The wrong key was not stored: the bookie still does not know the ledger.
        assert LEDGER not in bookie.store.ledgers
        reader = await client.open_ledger(
            LEDGER, password=PASSWORD, recover=True, unverified_password=True
        )
        assert reader.last_add_confirmed == -1
        await client.close()


async def test_a_bookie_that_has_an_entry_of_format_1_checks_the_password(
    tmp_path: Path,
) -> None:
    metadata = memory_metadata()
    async with running_bookie(tmp_path / "bookie", metadata=metadata) as bookie:
        client = Client(metadata)
        writer = await client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD, digest="crc32"
        )
        await writer.append(b"x")
        writer.abandon()
        ledger_id = writer.ledger_id
        await metadata.delete_ledger(ledger_id)
        await metadata.create_ledger(first_format(bookie.bookie_id), ledger_id)
        with pytest.raises(UnauthorizedError, match="wrong password"):
            await client.open_ledger(ledger_id, password=b"wrong", recover=True)
        assert (await metadata.read_ledger(ledger_id)).value.state is LedgerState.OPEN
        reader = await client.open_ledger(ledger_id, password=PASSWORD, recover=True)
        assert reader.last_add_confirmed == 0
        await client.close()


@FORMS
async def test_a_deletion_is_refused_although_the_server_does_not_show_the_new_ledger(
    version: int, change: Callable[[LedgerMetadata], LedgerMetadata]
) -> None:
    """The server lagged behind the process that took the id, and its ledger was deleted."""
    store = memory_metadata()
    await store.initialise()
    await store.create_ledger(stored_form(version), LEDGER)
    seen = await see_ledger(store, LEDGER)
    server = LaggingServer(store)
    server.fall_behind()
    await recreate(MemoryStore(store.cluster), change)
    with pytest.raises(LedgerRecreatedError, match="It was not deleted"):
        await check_seen(store, seen)
