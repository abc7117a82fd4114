"""A writer whose members are unreachable and cannot be replaced waits for them, within a limit.

Nothing that it reports meanwhile is unproven.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quire.client import LedgerWriter
from quire.client.write.ensemble_changes import REJOIN_BACKOFF, REJOIN_DELAY_S, _advice
from quire.config import ClientConfig
from quire.errors import (
    AddQuorumTimeoutError,
    BookieIOError,
    BookieTimeoutError,
    ClientClosedError,
    LedgerFencedError,
    NotEnoughBookiesError,
    QuireError,
    TlsError,
    UnauthorizedError,
)
from quire.metadata.common import NODE_BYTES_MAX
from quire.metadata.ledgers.update import update_ledger
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    FakeBookie,
    FakeCluster,
    FakePool,
    created,
    payload,
    simulated,
)
from tests.support.metadata.room import fill
from tests.support.waiting import until

LIMIT_S = 10.0
WAITS = dataclasses.replace(CONFIG, lost_quorum_wait_s=LIMIT_S)
LATE_S = CONFIG.bookies_wait_s + 1.0
"""A replacement is waited for first."""


@asynccontextmanager
async def written(
    config: ClientConfig = WAITS, shape: tuple[int, int, int] = (3, 3, 2)
) -> AsyncIterator[tuple[FakeCluster, LedgerWriter]]:
    """Return a writer that has appended entry 0, and whose ensemble has all bookies."""
    cluster = await FakeCluster.made(shape[0])
    async with cluster.client(config) as client:
        writer = await created(client, shape)
        await writer.append(payload(0))
        yield cluster, writer


def all_die(cluster: FakeCluster) -> None:
    for bookie in cluster.bookies.values():
        bookie.die()


def back(cluster: FakeCluster) -> None:
    for bookie in cluster.bookies.values():
        bookie.down = False


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 3, 3), (3, 2, 2), (1, 1, 1)])
@pytest.mark.parametrize("away_s", [0.0, 1.5, 8.0])
def test_the_same_members_receive_every_entry_once_they_are_reachable(
    shape: tuple[int, int, int], away_s: float
) -> None:
    async def main() -> None:
        async with written(shape=shape) as (cluster, writer):
            all_die(cluster)
            appends = [asyncio.ensure_future(writer.append(payload(k))) for k in range(1, 20)]
            await asyncio.sleep(away_s)
            assert writer.last_add_confirmed == 0
            back(cluster)
            assert await asyncio.gather(*appends) == list(range(1, 20))
            assert await writer.append(payload(20)) == 20
            assert await writer.close() == 20
        stored = await cluster.stored()
        assert len(stored.segments) == 1
        for entry in range(21):
            having = [one for one in cluster.bookies.values() if entry in one.entries]
            assert len(having) >= shape[2], entry

    simulated(main)


def test_an_earlier_ack_counts_but_alone_completes_no_ack_quorum() -> None:
    async def main() -> None:
        async with written() as (cluster, writer):
            first, second, third = cluster.bookies.values()
            second.holds_acks = third.holds_acks = True
            append = asyncio.ensure_future(writer.append(payload(1)))
            await until(lambda: 1 in first.entries)
            all_die(cluster)
            await asyncio.sleep(LATE_S)
            assert not append.done()
            second.down = second.holds_acks = False
            assert await append == 1
            assert not third.links
            writer.abandon()

    simulated(main)


def test_a_writer_does_not_wait_for_bookies_it_has_never_reached() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client(WAITS) as client:
            writer = await created(client)
            all_die(cluster)
            before = now()
            with pytest.raises(NotEnoughBookiesError) as told:
                await writer.append(payload(0))
            assert "tried again" not in str(told.value)
            assert now() - before < LATE_S

    simulated(main)


def test_a_writer_waits_for_lost_members_up_to_its_limit() -> None:
    async def main() -> None:
        async with written() as (cluster, writer):
            all_die(cluster)
            began = now()
            with pytest.raises(NotEnoughBookiesError, match="tried again for 10 s") as failed:
                await writer.append(payload(1))
            assert not failed.value.outcome_known
            assert set(failed.value.causes) == set(cluster.bookies)
            assert LIMIT_S <= now() - began <= LIMIT_S + LATE_S
            with pytest.raises(NotEnoughBookiesError):
                await writer.append(payload(2))

    simulated(main)


def test_a_time_limit_for_the_ack_quorum_applies_instead() -> None:
    async def main() -> None:
        config = dataclasses.replace(WAITS, add_quorum_timeout_s=2 * LIMIT_S)
        async with written(config) as (cluster, writer):
            all_die(cluster)
            append = asyncio.ensure_future(writer.append(payload(1)))
            await asyncio.sleep(1.5 * LIMIT_S)
            assert not append.done()
            with pytest.raises((AddQuorumTimeoutError, NotEnoughBookiesError)):
                await append

    simulated(main)


def test_the_advice_follows_the_causes() -> None:
    """A client without the right certificate was told to start another bookie."""
    refused: list[QuireError] = [TlsError("no role"), UnauthorizedError("no TLS", ledger_id=1)]
    assert _advice(refused) == (
        "Correct the certificate, the password or the TLS settings that the causes name"
    )
    assert _advice(refused[1:]) == "Correct the client's password or certificate, as the causes say"
    expired = TlsError("the certificate of a bookie has expired")
    reason = ssl.SSLCertVerificationError()
    reason.verify_code = 10
    expired.__cause__ = reason
    assert _advice([expired]) == "Renew the certificates of these bookies, as the causes say", (
        "the client's own certificate is valid"
    )
    assert _advice([expired, refused[0]]).startswith("Correct the certificate, the password")
    assert "logs of these bookies" in _advice([BookieIOError("disk")])
    for causes in ([*refused, BookieTimeoutError("silent")], [None], ["gone"]):
        assert _advice(causes) == "Start another bookie"


@pytest.mark.parametrize("wait_s", [0.0, LIMIT_S])
def test_a_writer_whose_metadata_is_full_reports_it(wait_s: float) -> None:
    """The metadata has no space for a replacement, so another bookie would not help."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        config = dataclasses.replace(CONFIG, lost_quorum_wait_s=wait_s)
        async with cluster.client(config) as client:
            writer = await created(client)
            await writer.append(payload(0))
            await fill(cluster)
            members = [cluster[name] for name in writer.metadata.last_segment.ensemble]
            [spare] = [one for one in cluster.bookies.values() if one not in members]
            for lost in members[1:]:
                lost.die()
            with pytest.raises(NotEnoughBookiesError) as told:
                await writer.append(payload(1))
        error = told.value
        tried = f" (tried again for {LIMIT_S:g} s)" if wait_s else ""
        assert error.args[0] == (
            f"the writer of ledger {LEDGER} gave up, because the metadata has no room to replace "
            f"{members[1].name}, {members[2].name}{tried}: the metadata of the ledger would "
            "become too large: with 2 segments it takes "
            f"{_bytes_in(error.args[0]):,} bytes, but a ledger in state OPEN may have only "
            "1,000,000 bytes. Nothing was changed"
        )
        assert error.remedy == "Start these bookies again, then open the ledger with recovery"
        assert error.causes.keys() == {members[1].name, members[2].name}
        assert not error.outcome_known
        assert not spare.added
        assert writer._session.pool.counters.ensemble_changes_without_room == 1
        assert len((await cluster.stored()).segments) == 1

    simulated(main)


def _bytes_in(text: str) -> int:
    """Return the size of the metadata that a message names, which is over the limit."""
    [found] = re.findall(r"it takes ([0-9,]+) bytes", text)
    size = int(found.replace(",", ""))
    assert size > NODE_BYTES_MAX
    return size


def test_waiting_for_lost_members_can_be_disabled() -> None:
    async def main() -> None:
        config = dataclasses.replace(CONFIG, lost_quorum_wait_s=0.0)
        async with written(config) as (cluster, writer):
            all_die(cluster)
            began = now()
            with pytest.raises(NotEnoughBookiesError, match="no bookie is left to replace") as no:
                await writer.append(payload(1))
            assert "tried again" not in str(no.value)
            assert "`quire explain cluster` says why" in str(no.value)
            assert now() - began <= LATE_S

    simulated(main)


def test_members_that_accept_and_break_connections_do_not_extend_the_limit() -> None:
    class Breaking(dict[int, bytes]):
        """The entries of a bookie that is cut off whenever an add reaches it."""

        def __init__(self, bookie: FakeBookie) -> None:
            self.bookie = bookie

        def __setitem__(self, entry: int, stored: bytes) -> None:
            for link in self.bookie.links:
                asyncio.get_running_loop().call_soon(link.lose)

    async def main() -> None:
        async with written() as (cluster, writer):
            for bookie in cluster.bookies.values():
                bookie.entries = Breaking(bookie)
                bookie.holds_acks = True
            began = now()
            with pytest.raises(NotEnoughBookiesError):
                await writer.append(payload(1))
            assert now() - began <= 3 * LIMIT_S

    simulated(main)


@pytest.mark.parametrize("add_timeout_s", [1.0, 5.0, LIMIT_S, 3 * LIMIT_S])
def test_members_that_accept_connections_and_never_answer_do_not_extend_the_limit(
    add_timeout_s: float,
) -> None:
    """The limit once restarted for ever whenever the members were reachable again."""

    async def main() -> None:
        config = dataclasses.replace(WAITS, add_timeout_s=add_timeout_s)
        async with written(config) as (cluster, writer):
            for bookie in cluster.bookies.values():
                bookie.holds_acks = True
            began = now()
            with pytest.raises(NotEnoughBookiesError, match="tried again for 10 s"):
                await writer.append(payload(1))
            assert now() - began <= 4 * add_timeout_s + LIMIT_S + 4 * LATE_S

    simulated(main)


def test_an_expired_limit_is_reset_by_the_next_acknowledgement() -> None:
    async def main() -> None:
        config = dataclasses.replace(WAITS, add_timeout_s=3 * LIMIT_S)
        async with written(config) as (cluster, writer):
            for entry in range(1, 4):
                for bookie in cluster.bookies.values():
                    bookie.die()
                    bookie.holds_acks = True
                append = asyncio.ensure_future(writer.append(payload(entry)))
                await asyncio.sleep(0.8 * LIMIT_S)
                back(cluster)
                await asyncio.sleep(LIMIT_S)  # The time is up, and they are back.
                assert not append.done()
                for bookie in cluster.bookies.values():
                    bookie.release()
                assert await append == entry
            writer.abandon()

    simulated(main)


def test_a_recovery_in_the_meantime_fences_the_waiting_writer() -> None:
    async def main() -> None:
        async with written() as (cluster, writer):
            all_die(cluster)
            append = asyncio.ensure_future(writer.append(payload(1)))
            await asyncio.sleep(LATE_S)
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(
                cluster.store, LEDGER, stored, lambda now: now.with_close(0, len(payload(0)))
            )
            for bookie in cluster.bookies.values():
                bookie.fenced = True
            back(cluster)
            with pytest.raises(LedgerFencedError):
                await append
            assert all(1 not in bookie.entries for bookie in cluster.bookies.values())

    simulated(main)


def test_a_replacement_that_registers_meanwhile_is_used() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.registrations["b3"].close()
        async with cluster.client(WAITS) as client:
            writer = await created(client)
            await writer.append(payload(0))
            assert "b3" not in writer.metadata.last_segment.ensemble
            cluster["b0"].die()
            cluster["b1"].die()
            append = asyncio.ensure_future(writer.append(payload(1)))
            await asyncio.sleep(LATE_S + REJOIN_DELAY_S)
            assert not append.done()
            address = (await cluster.store.bookies()).find("b2")
            assert address is not None
            await cluster.store.register_bookie(dataclasses.replace(address, bookie_id="b3"))
            assert await append == 1
            assert 1 in cluster["b3"].entries
            assert 1 in cluster["b2"].entries
            writer.abandon()

    simulated(main)


def test_entries_submitted_while_waiting_are_limited_in_bytes() -> None:
    async def main() -> None:
        config = dataclasses.replace(WAITS, max_unacked_bytes=50_000, max_turn_bytes=1_000)
        async with written(config) as (cluster, writer):
            all_die(cluster)
            writer.submit(b"x")
            await asyncio.sleep(LATE_S)  # all of them are away now

            async def submits() -> None:
                for _ in range(200):
                    writer.submit(bytes(1_000))
                    await writer.room()

            more = asyncio.ensure_future(submits())
            await asyncio.sleep(1.0)
            assert not more.done()
            assert writer.length < 60_000
            back(cluster)
            await more
            assert await writer.flush() == 201
            writer.abandon()

    simulated(main)


def test_an_idle_writer_reconnects_to_its_members() -> None:
    async def main() -> None:
        async with written() as (cluster, writer):
            for _ in range(3):
                all_die(cluster)
                await asyncio.sleep(0.8 * LIMIT_S)
                back(cluster)
                await until(lambda: all(bookie.links for bookie in cluster.bookies.values()))
            assert await writer.append(payload(1)) == 1
            writer.abandon()

    simulated(main)


def test_a_member_that_comes_and_goes_does_not_shorten_the_wait() -> None:
    async def main() -> None:
        async with written() as (cluster, writer):
            all_die(cluster)
            append = asyncio.ensure_future(writer.append(payload(1)))
            await asyncio.sleep(LATE_S)
            first = next(iter(cluster.bookies.values()))
            for _ in range(2):
                first.down = False
                await until(lambda: bool(first.links))
                first.die()
                await asyncio.sleep(0.5)
                assert not append.done(), "the time is not up"
            back(cluster)
            assert await append == 1
            writer.abandon()

    simulated(main)


def test_an_absent_member_is_retried_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between attempts grow while an ack quorum answers without the member."""
    tried: list[float] = []
    connect = FakePool._connect

    async def connecting(pool: FakePool, bookie_id: str, make: Any) -> Any:
        if pool.fakes[bookie_id].down:
            tried.append(now())
        return await connect(pool, bookie_id, make)

    monkeypatch.setattr(FakePool, "_connect", connecting)

    async def main() -> None:
        async with written() as (cluster, writer):
            first, *_ = cluster.bookies.values()
            first.die()
            assert await writer.append(payload(1)) == 1
            await asyncio.sleep(300)
            pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
            assert 8 <= len(pauses) <= 25
            assert max(pauses[-3:]) > 10 * REJOIN_DELAY_S
            assert max(pauses) <= 1.5 * REJOIN_BACKOFF.most_s
            first.down = False
            await until(lambda: bool(first.links), limit_s=100)
            assert await writer.append(payload(2)) == 2
            await until(lambda: 2 in first.entries)
            writer.abandon()

    simulated(main)


@pytest.mark.parametrize(("lost", "outcome"), [(1, "fewer"), (2, "waits")])
def test_the_log_reports_how_a_writer_continues(
    lost: int, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with written() as (cluster, writer):
            for bookie in list(cluster.bookies.values())[:lost]:
                bookie.die()
            append = asyncio.ensure_future(writer.append(payload(1)))
            await asyncio.sleep(LATE_S + 1)
            assert append.done() is (outcome == "fewer")
            back(cluster)
            await append
            writer.abandon()

    with caplog.at_level(logging.INFO, logger="quire.client"):
        simulated(main)
    said = [one.getMessage() for one in caplog.records if "ensemble_changed" in one.getMessage()]
    assert f"outcome={outcome}" in said[-1]


@pytest.mark.parametrize("after_s", [0.1, 1.0, LATE_S])
def test_appends_that_wait_for_lost_bookies_end_with_their_client(after_s: float) -> None:
    """Closing the client cancels the tasks that would replace or reconnect the members."""

    async def main() -> None:
        async with written() as (cluster, writer):
            all_die(cluster)
            append = asyncio.ensure_future(writer.append(payload(1)))
            await asyncio.sleep(after_s)
            assert not append.done()
        await asyncio.wait((append,), timeout=1.0)
        assert append.done()
        with pytest.raises(ClientClosedError, match="the client was closed while ledger") as caught:
            await append
        assert not caught.value.outcome_known
        with pytest.raises(ClientClosedError):
            await writer.append(payload(2))

    simulated(main)


def test_a_member_that_comes_and_goes_is_no_change_of_the_ensemble() -> None:
    """The limit bounds the growth of the metadata, which does not change without a replacement."""
    config = dataclasses.replace(WAITS, max_ensemble_changes=2)

    async def main() -> None:
        async with written(config) as (cluster, writer):
            first, *_ = cluster.bookies.values()
            for entry in range(1, 6):
                first.die()
                assert await writer.append(payload(entry)) == entry
                await until(lambda: writer._session._changes.absent, limit_s=100)  # type: ignore[union-attr]
                first.down = False
                await until(lambda entry=entry: entry in first.entries or first.links, limit_s=100)
            assert writer._session.pool.counters.ensemble_changes == 0
            assert await writer.close() == 5
        assert len((await cluster.stored()).segments) == 1

    simulated(main)
