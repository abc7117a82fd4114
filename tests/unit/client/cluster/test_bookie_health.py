"""A client records bookies that fail, are slow or give wrong answers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Sequence

import pytest

from quire._runtime.tasks import TaskSet
from quire.client import Client
from quire.client.client import pool_of
from quire.client.cluster import absences, health
from quire.client.cluster.absences import Absences
from quire.client.cluster.health import BookieHealth, Misbehaviour, UnhealthyBookie
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerState, Segment
from quire.config import ClientConfig
from quire.errors import (
    DigestError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    ReadError,
    RecoveryError,
    UnauthorizedError,
)
from quire.net.control import LacAnswer, PollAnswer
from quire.replication import ReplicationLocks
from tests.support.bookies.bookie import memory_metadata
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    Ask,
    FakeCluster,
    FakePool,
    payload,
    simulated,
)
from tests.support.metadata.lagging import LaggingServer
from tests.support.waiting import until

CLOSED = LedgerState.CLOSED


class Times:
    """A `BookieHealth` on a clock that the test sets."""

    def __init__(self, **config: float) -> None:
        self.now_s = 0.0
        self.health = BookieHealth(
            ClientConfig(**config),  # type: ignore[arg-type]
            lambda: self.now_s,
            TaskSet(),
        )


# -- absences ----


def test_confirmed_absences_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known absence is reported again at once, without asking the bookie."""
    monkeypatch.setattr(absences, "CONFIRMED_MAX", 3)

    async def scene() -> None:
        asked: list[int] = []
        reported: list[int] = []
        found = Absences(ClientConfig(absence_recheck_s=0.001), TaskSet())

        async def deny(ledger_id: int) -> None:
            async def ask() -> bool:
                asked.append(ledger_id)
                return True

            before = len(reported)
            found.denied("b", ledger_id, 0, ask, lambda: reported.append(ledger_id), checks=1)
            await until(lambda: len(reported) > before)

        for ledger_id in (1, 2, 3, 1, 2, 3):
            await deny(ledger_id)
        assert asked == [1, 2, 3]
        await deny(4)  # all are forgotten, and this one is remembered
        await deny(4)
        await deny(1)
        assert asked == [1, 2, 3, 4, 1]
        assert reported == [1, 2, 3, 1, 2, 3, 4, 4, 1]

    asyncio.run(scene())


# -- quarantine -------------------------------------------------------------------------------


def test_a_hundred_errors_within_a_minute_put_a_bookie_in_quarantine() -> None:
    """These are the defaults of Apache's client with `bookieHealthCheckEnabled`."""
    times = Times(quarantine_errors=100)
    for n in range(99):
        times.now_s = n * 0.6
        times.health.error("b")
    assert not times.health.quarantined("b")
    times.now_s = 59.9
    times.health.error("b")
    assert times.health.quarantined("b")
    assert times.health.in_quarantine() == ["b"]
    assert not times.health.quarantined("other")
    times.now_s += 1_799
    assert times.health.quarantined("b")
    times.now_s += 2
    assert not times.health.quarantined("b")
    assert times.health.in_quarantine() == []


def test_errors_that_are_further_apart_do_not_put_a_bookie_in_quarantine() -> None:
    times = Times(quarantine_errors=100)
    for n in range(300):
        times.now_s = n * 0.61
        times.health.error("b")
    assert not times.health.quarantined("b")


def test_each_reason_why_a_bookie_is_avoided_ends_in_its_time() -> None:
    times = Times(quarantine_errors=2)
    for bookie in "abb":
        times.health.error(bookie)
    times.health.overtaken("c")
    times.health.misbehaved("d", Misbehaviour.DROPPED, 7, 0)
    times.health.misbehaved("e", Misbehaviour.STALE_LAC, 7, -1)  # it may be honest
    assert times.health.avoided() == [
        ("a", "failed"), ("b", "errors"), ("b", "failed"), ("c", "slow"), ("d", "wrong-answers"),
    ]  # fmt: skip
    times.now_s = 31.0
    assert times.health.avoided() == [("b", "errors"), ("c", "slow"), ("d", "wrong-answers")]
    times.now_s = 61.0
    assert times.health.avoided() == [("b", "errors"), ("d", "wrong-answers")]
    times.now_s = 1_801.0
    assert times.health.avoided() == []


def test_metrics_that_name_bookies_are_collected_in_a_thread_without_an_event_loop() -> None:
    """A reader of OpenTelemetry has a thread of its own."""

    async def scene() -> str:
        client = Client(memory_metadata(), rng=random.Random(0))
        health = pool_of(client).health
        health.overtaken("b1")
        health.misbehaved("b2", Misbehaviour.BAD_DIGEST, 7, 0)
        try:
            return await asyncio.to_thread(client.metrics)
        finally:
            await client.close()

    text = asyncio.run(scene())
    assert 'quire_client_bookie_avoided{bookie="b1",reason="slow"} 1' in text
    assert 'quire_client_wrong_answers_total{bookie="b2",kind="bad-digest"} 1' in text


def test_by_default_errors_do_not_put_a_bookie_in_quarantine() -> None:
    times = Times()
    for _ in range(1_000):
        times.health.error("b")
    assert not times.health.quarantined("b")


def test_a_bookie_in_quarantine_is_chosen_only_if_no_other_is_left() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            pool_of(client).health.misbehaved("b1", Misbehaviour.BAD_DIGEST, 1, 1)
            for _ in range(10):
                writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
                assert "b1" not in writer.metadata.last_segment.ensemble
                writer.abandon()
            writer = await client.create_ledger(ensemble_size=4, write_quorum=3, ack_quorum=2)
            assert "b1" in writer.metadata.last_segment.ensemble
            writer.abandon()
            with pytest.raises(NotEnoughBookiesError):
                await client.create_ledger(ensemble_size=5, write_quorum=3, ack_quorum=2)

    simulated(main)


def test_quarantine_of_byzantine_bookies_can_be_disabled() -> None:
    times = Times(quarantine_liars=False)
    times.health.misbehaved("b", Misbehaviour.BAD_DIGEST, 1, 1)
    assert not times.health.quarantined("b")
    assert len(times.health.unhealthy()) == 1


# -- slow -------------------------------------------------------------------------------------


def test_a_slow_bookie_is_asked_after_the_others_for_a_minute() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(30), state=CLOSED)
        slow = cluster["b1"]
        slow.says = slow.silent
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            for entry in range(30):
                await reader.read_entry(entry)
            assert len(slow.asked) == 1
            assert pool_of(client).health.slow("b1")
            assert client.suspects() == []
            await asyncio.sleep(CONFIG.slow_bookie_s)
            slow.says = None
            for entry in range(30):
                await reader.read_entry(entry)
            assert len(slow.asked) > 1

    simulated(main)


def test_a_striped_reader_avoids_a_slow_bookie() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((4, 3, 2), range(100), state=CLOSED)
        slow = cluster["b1"]
        slow.says = slow.silent
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            await reader.read_entry(1)
            asked = len(slow.asked)
            found = [entry.payload async for entry in reader.read()]
            assert found == [payload(n) for n in range(100)]
            assert len(slow.asked) == asked

    simulated(main)


# -- suspects ---------------------------------------------------------------------------------


def test_each_kind_of_misbehaviour_is_reported() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((4, 4, 2), range(1, 5), state=CLOSED)
        cluster["b0"].says = lambda ask: cluster.entry(ask.entry)[:-1] + b"?"
        cluster["b1"].says = lambda ask: cluster.entry(ask.entry - 1)
        cluster["b2"].says = cluster["b2"].no
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            for entry in (1, 2, 3, 4, 2, 3, 4, 1, 3, 4, 1, 2):
                assert (await reader.read_entry(entry)).payload == payload(entry)
            await until(client.suspects, right=lambda found: len(found) == 3)
            named = {one.bookie: one for one in client.suspects()}
            assert {name: one.kind.value for name, one in named.items()} == {
                "b0": "bad-digest", "b1": "wrong-entry", "b2": "missing",
            }  # fmt: skip
            assert named["b1"].last_ledger == LEDGER
            assert named["b1"].last_entry in range(1, 5)
            quarantined = {b for b in cluster.bookies if pool_of(client).health.quarantined(b)}
            assert quarantined == {"b0", "b1"}  # b2 may never have had them

    simulated(main)


def test_a_denial_counts_as_a_dropped_entry_only_if_all_had_to_acknowledge_it() -> None:
    async def main() -> None:
        for ack_quorum, kind in ((2, Misbehaviour.MISSING), (3, Misbehaviour.DROPPED)):
            cluster = await FakeCluster.made(3)
            await cluster.ledger((3, 3, ack_quorum), range(9), state=CLOSED)
            cluster["b0"].says = cluster["b0"].no
            async with cluster.client() as client:
                reader = await client.open_ledger(LEDGER, password=PASSWORD)
                for entry in range(9):
                    await reader.read_entry(entry)
                [suspect] = await until(client.suspects)
                assert (suspect.bookie, suspect.kind) == ("b0", kind)
                assert pool_of(client).health.quarantined("b0") is (kind is Misbehaviour.DROPPED)

    simulated(main)


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 3, 2)], ids=["plain", "striped"])
def test_a_replica_that_lags_is_not_missing(
    shape: tuple[int, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """A lagging replica was once reported and marked for repair right after the close."""

    async def main() -> None:
        cluster = await FakeCluster.made(shape[0])
        await cluster.ledger(shape, range(12), state=CLOSED)
        late = cluster["b0"]
        late.says = late.no
        reported: list[int] = []

        async def on_damage(ledger_id: int, bookies: Sequence[str]) -> None:
            reported.append(ledger_id)

        async with cluster.client() as client:
            client.on_damage = on_damage
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            for entry in range(12):
                assert (await reader.read_entry(entry)).payload == payload(entry)
            assert loop.time() - begun_s < 1.0, "no read waits for the late bookie"
            asked = len(late.asked)
            await asyncio.sleep(1.0)
            late.says = None  # it has caught up
            await asyncio.sleep(60)
            assert len(late.asked) == asked + 1, "the bookie is asked once more, for one entry"
            assert (client.suspects(), reported) == ([], [])
            assert pool_of(client).health.lagged == 1

    with caplog.at_level(logging.INFO, "quire.client"):
        simulated(main)
    events = [(one.levelname, one.event) for one in caplog.records]  # type: ignore[attr-defined]
    assert events == [("INFO", "replica_lagged")]


def test_a_replica_counts_as_missing_after_repeated_denials() -> None:
    async def main() -> None:
        for ack_quorum, after_s in ((2, 14.0), (3, 2.0)):
            cluster = await FakeCluster.made(3)
            await cluster.ledger((3, 3, ack_quorum), range(9), state=CLOSED)
            cluster["b0"].says = cluster["b0"].no
            async with cluster.client() as client:
                reader = await client.open_ledger(LEDGER, password=PASSWORD)
                for entry in range(9):
                    await reader.read_entry(entry)
                await asyncio.sleep(after_s - 0.5)
                assert client.suspects() == []
                await asyncio.sleep(1.0)
                assert len(client.suspects()) == 1

    simulated(main)


def test_a_bookie_that_does_not_answer_the_second_time_is_not_judged() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(9), state=CLOSED)
        gone = cluster["b0"]
        gone.says = gone.no
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            for entry in range(9):
                await reader.read_entry(entry)
            gone.says = gone.silent
            await asyncio.sleep(60)
            assert client.suspects() == []
            assert pool_of(client).health.lagged == 0

    simulated(main)


@pytest.mark.parametrize("ack_quorum", [2, 3])
@pytest.mark.parametrize("lags", [False, True])
def test_a_replaced_bookie_is_not_blamed_for_a_denial(lags: bool, ack_quorum: int) -> None:
    """A reader that knows older metadata asks a bookie that has dropped what is not its any more.
    With all acknowledgements wanted it went into quarantine for that. The server of the metadata
    store may not know the newer metadata yet either."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, ack_quorum), range(9), state=CLOSED)
        async with cluster.client() as client:
            if lags:
                LaggingServer(client.metadata).fall_behind()
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            stored = await cluster.store.read_ledger(LEDGER)
            segments = (Segment(0, ("b3", "b1", "b2")),)
            changed = dataclasses.replace(stored.value, segments=segments)
            await cluster.store.write_ledger(LEDGER, changed, stored.version)
            cluster["b0"].says = cluster["b0"].no
            for entry in range(9):
                await reader.read_entry(entry)
            await asyncio.sleep(60)
            assert client.suspects() == []
            assert not pool_of(client).health.quarantined("b0")

    simulated(main)


def test_a_denial_in_an_open_ledger_is_not_reported() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 3), range(9))
        cluster["b0"].says = lambda ask: cluster["b0"].no(ask) if ask.entry == 3 else ...
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            for _ in range(3):
                await reader.read_entry(3)
            await asyncio.sleep(60)
            assert client.suspects() == []

    simulated(main)


def test_a_bad_digest_that_our_own_key_may_cause_blames_no_bookie() -> None:
    """Metadata of format 1 has no password to compare with."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        metadata = await cluster.ledger((3, 3, 2), range(4), digest=DigestType.HMAC, state=CLOSED)
        assert metadata.password == PASSWORD
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            reader._engine._metadata = lambda: dataclasses.replace(metadata, password=None)
            for bookie in cluster.bookies.values():
                bookie.says = lambda ask: cluster.entry(ask.entry)[:-1] + b"?"
            with pytest.raises(DigestError):
                await reader.read_entry(1)
            assert client.suspects() == []

    simulated(main)


@pytest.mark.parametrize("compares", [0, 1], ids=["honest", "byzantine"])
@pytest.mark.parametrize("speaks_v3", [True, False], ids=["v3", "v2"])
def test_no_reader_of_a_ledger_without_its_password_blames_bookies_for_digests(
    speaks_v3: bool, compares: int
) -> None:
    """Metadata without a password has no digest type, so that the reader's own may be wrong.

    This holds for opening, refreshing, tailing and recovering.
    """

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        metadata = await cluster.ledger((3, 3, 3), range(4), digest=DigestType.CRC32)
        known = await cluster.store.read_ledger(LEDGER)
        without = dataclasses.replace(metadata, password=None, digest=None)
        await cluster.store.write_ledger(LEDGER, without, known.version)
        other = EntryCodec(LEDGER, DigestType.HMAC, b"another password")
        codec = cluster.codec

        class Control:
            def __init__(self, bookie_id: str) -> None:
                self.bookie_id = bookie_id
                self.usable, self.lost = True, None

            async def read_lac(self, ledger_id: int) -> LacAnswer:
                return LacAnswer(codec.pack_lac(2), codec.pack(3, 2, 4, b"?"))

            async def long_poll(self, *args: object, **more: object) -> PollAnswer:
                await asyncio.sleep(0.05)
                return PollAnswer(9, codec.pack(3, 2, 4, b"?"), codec.pack_lac(2))

        def lie() -> None:
            nonlocal codec
            codec = other
            for bookie in cluster.bookies.values():
                bookie.says = lambda ask: other.pack(max(ask.entry, 0), 9, 4, b"?")

        async with cluster.client() as client:
            pool = pool_of(client)
            assert isinstance(pool, FakePool)
            if speaks_v3:

                async def control(bookie: str, adds_of: int | None = None) -> Control:
                    return Control(bookie)

                pool.control = control  # type: ignore[method-assign,assignment]
            reader = await client.open_ledger(LEDGER, password=PASSWORD, assume_liars=compares)
            lie()
            with pytest.raises(ReadError):
                await reader.refresh()
            if speaks_v3 and not compares:
                tail = reader.tail(4)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(tail), 0.2)
            reader.close()
            for recover in (False, True):
                with pytest.raises((ReadError, UnauthorizedError, RecoveryError)):
                    await client.open_ledger(
                        LEDGER, password=PASSWORD, recover=recover, assume_liars=compares
                    )
            assert client.suspects() == []
            assert pool.health.in_quarantine() == []

    simulated(main)


def test_bytes_of_another_entry_blame_the_bookie_although_the_key_is_unknown() -> None:
    """A valid digest proves that the own key is right."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        metadata = await cluster.ledger((3, 3, 2), range(4), digest=DigestType.HMAC, state=CLOSED)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            reader._engine._metadata = lambda: dataclasses.replace(metadata, password=None)
            for bookie in cluster.bookies.values():
                bookie.says = lambda ask: cluster.entry(3)
            with pytest.raises(DigestError):
                await reader.read_entry(1)
            assert {one.kind for one in client.suspects()} == {Misbehaviour.WRONG_ENTRY}

    simulated(main)


def test_a_lac_that_goes_back_is_reported() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(9))
        stale = False

        class Control:
            def __init__(self, name: str) -> None:
                self.name = name

            async def read_lac(self, ledger_id: int) -> LacAnswer:
                last = 4 if stale and self.name == "b1" else 8
                return LacAnswer(b"", cluster.entry(last))

        async with cluster.client() as client:
            pool = pool_of(client)
            assert isinstance(pool, FakePool)

            async def control(bookie: str, adds_of: int | None = None) -> Control:
                return Control(bookie)

            pool.control = control  # type: ignore[method-assign,assignment]
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert reader.last_add_confirmed == 7
            assert await reader.refresh() == 7
            assert client.suspects() == []
            stale = True
            assert await reader.refresh() == 7
            assert client.suspects() == [
                UnhealthyBookie("b1", Misbehaviour.STALE_LAC, 1, LEDGER, -1)
            ]
            assert not pool.health.quarantined("b1")

    simulated(main)


def test_misbehaving_bookies_are_reported_by_recovery_too() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((4, 3, 2), range(6))

        def says(ask: Ask) -> bytes:
            return cluster.entry(ask.entry if ask.entry >= 0 else 1)[:-1] + b"?"

        cluster["b3"].says = says
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 5
            [suspect] = client.suspects()
            assert (suspect.bookie, suspect.kind.value) == ("b3", "bad-digest")
            assert suspect.count > 1

    simulated(main)


def test_misbehaviour_is_logged_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    times = Times()
    with caplog.at_level(logging.WARNING, "quire.client"):
        for entry in range(25):
            times.health.misbehaved("b7", Misbehaviour.WRONG_ENTRY, 12, entry)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "bookie_misbehaved bookie=b7 kind=wrong-entry count=1 ledger=12 entry=0",
        "bookie_quarantined bookie=b7 kind=wrong-entry seconds=1800",
        "bookie_misbehaved bookie=b7 kind=wrong-entry count=10 ledger=12 entry=9",
    ]
    assert times.health.unhealthy() == [UnhealthyBookie("b7", Misbehaviour.WRONG_ENTRY, 25, 12, 24)]


# -- what is reported for repair --------------------------------------------------------------


def test_each_replica_is_reported_once() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(9), state=CLOSED)
        cluster["b0"].says = cluster["b0"].no
        reported: list[tuple[int, list[str]]] = []

        async def on_damage(ledger_id: int, bookies: Sequence[str]) -> None:
            reported.append((ledger_id, list(bookies)))

        async with cluster.client() as client:
            client.on_damage = on_damage
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            for entry in range(9):
                await reader.read_entry(entry)
            await until(lambda: reported)
            for entry in range(9):
                await reader.read_entry(entry)
            assert client.suspects()[0].count > 1
            assert reported == [(LEDGER, ["b0"])]

    simulated(main)


def test_replicas_are_remembered_as_reported_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the limit is reached, all are forgotten, and may be reported once more."""
    monkeypatch.setattr(health, "REPORTED_MAX", 3)

    async def main() -> None:
        reported: list[int] = []
        found = BookieHealth(ClientConfig(), lambda: 0.0, TaskSet())

        async def on_damage(ledger_id: int, bookies: Sequence[str]) -> None:
            reported.append(ledger_id)

        found.on_damage = on_damage
        for ledger_id in [1, 2, 3, 1, 2, 3, 4, 3, 4]:
            found.misbehaved("b", Misbehaviour.MISSING, ledger_id, 0)
        await until(lambda: len(reported) >= 5)
        assert reported == [1, 2, 3, 4, 3]

    asyncio.run(main())


def test_ledgers_with_missing_replicas_are_marked_for_replication() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(9), state=CLOSED)
        cluster["b0"].says = lambda ask: cluster.entry(ask.entry)[:-1] + b"?"
        async with cluster.client() as client:
            locks = ReplicationLocks(cluster.store, "here", cluster.clock)
            client.on_damage = locks.mark
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            for entry in range(9):
                await reader.read_entry(entry)
            mark = None
            while mark is None:
                await asyncio.sleep(0.01)
                mark = await locks.marked(LEDGER)
            assert list(mark.value.replicas) == ["b0"]

    simulated(main)


def test_a_failed_report_affects_no_read_and_is_repeated() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(9), state=CLOSED)
        cluster["b0"].says = cluster["b0"].no
        failures = 2
        reported: list[str] = []

        async def on_damage(ledger_id: int, bookies: Sequence[str]) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise MetadataUnavailableError("not now")
            reported.extend(bookies)

        async with cluster.client() as client:
            client.on_damage = on_damage
            reader = await client.open_ledger(LEDGER, password=PASSWORD)

            async def read() -> list[str]:
                for entry in range(9):
                    await reader.read_entry(entry)
                return reported

            await until(read, poll_s=1.0)
            assert pool_of(client).health.unreported == 2
            assert reported == ["b0"]

    simulated(main)


def test_an_entry_that_no_replica_returns_raises_an_error_naming_all_replicas() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(3), state=CLOSED)
        for bookie in cluster.bookies.values():
            bookie.says = lambda ask: cluster.entry(ask.entry)[:-1] + b"?"
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            with pytest.raises(DigestError) as failed:
                await reader.read_entry(1)
            assert isinstance(failed.value, ReadError)
            assert set(failed.value.causes) == {"b0", "b1", "b2"}
            assert {one.bookie for one in client.suspects()} == {"b0", "b1", "b2"}

    simulated(main)
