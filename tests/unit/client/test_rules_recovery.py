"""The rules of recovery (docs/internals/replication-rules.md), on bookies with given answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection

import pytest

from quire.client import Client, LedgerReader, recovery
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.wire.v2 import LAST_ENTRY, Code, Flag
from quire.errors import (
    BookieTimeoutError,
    NotEnoughBookiesError,
    RecoveryError,
    UnauthorizedError,
    UnreadableMetadataError,
)
from quire.metadata.common import NODE_BYTES_MAX
from quire.metadata.ledgers.size import ledger_bytes_max
from quire.metadata.ledgers.update import update_ledger
from quire.net.answer_codes import error_of
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    Ask,
    FakeCluster,
    lac_of,
    payload,
    simulated,
)
from tests.support.metadata.room import fill
from tests.support.waiting import until

SHAPES = [(3, 3, 2), (4, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_rule_1_every_read_of_a_recovery_fences(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(30))
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 29
        asked = [ask for bookie in cluster.bookies.values() for ask in bookie.asked]
        assert {ask.entry for ask in asked} >= {-1, 29, 30}
        assert all(ask.flags & Flag.DO_FENCING for ask in asked)

    simulated(main)


def test_rule_1_a_bookie_that_missed_the_first_fencing_is_fenced_by_the_reads() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        late = cluster["b2"]
        late.says = lambda ask: None if ask.entry == -1 else ...
        async with cluster.client() as client:
            await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
        assert late.fenced

    simulated(main)


def test_rule_2_an_empty_last_segment_does_not_hide_the_one_before() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(6)
        segments = (Segment(0, ("b0", "b1", "b2")), Segment(10, ("b3", "b4", "b5")))
        await cluster.ledger((3, 3, 2), range(10), segments=segments)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 9
            assert [e.payload async for e in reader.read()] == [payload(n) for n in range(10)]
        closed = await cluster.stored()
        assert (closed.last_entry_id, closed.segments) == (9, segments)
        assert not any(bookie.added for bookie in cluster.bookies.values())

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_rule_3_a_single_copy_is_kept_and_enough_negatives_end_the_ledger(
    shape: tuple[int, int, int],
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        # Of entry 5 the only copy is on the last member of its write set; 6 is nowhere.
        last = f"b{(5 + 2) % shape[0]}"
        size = shape[0]
        await cluster.ledger(
            shape, range(6),
            on=lambda n: [last] if n == 5 else [f"b{(n + k) % size}" for k in range(3)],
        )  # fmt: skip
        silent = cluster[f"b{6 % size}"]  # nor does one of the others have to answer
        silent.says = lambda ask: None if ask.entry == 6 else ...
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 5
            assert (await reader.read_entry(5)).payload == payload(5)

    simulated(main)


def test_rule_4_recovery_concludes_nothing_if_an_ack_quorum_is_unknown() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        cluster["b0"].down = True
        cluster["b1"].says = cluster["b1"].silent
        async with cluster.client() as client:
            with pytest.raises(RecoveryError, match="answered to find its last entry") as failed:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert set(failed.value.causes) == {"b0", "b1"}
            assert not failed.value.outcome_known
            assert (await cluster.stored()).state is LedgerState.IN_RECOVERY
            cluster["b1"].says = None
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 3

    simulated(main)


def test_rule_5_a_ledger_is_closed_only_after_the_write_back_reached_an_ack_quorum() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        cluster["b1"].holds_acks = cluster["b2"].holds_acks = True
        async with cluster.client() as client:
            opening = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            await until(lambda: cluster["b1"].added and cluster["b2"].added)
            await asyncio.sleep(0.1)
            assert not opening.done()
            assert (await cluster.stored()).state is LedgerState.IN_RECOVERY
            cluster["b1"].release()
            assert (await opening).last_add_confirmed == 3
            assert (await cluster.stored()).closed

    simulated(main)


def test_rule_6_ensemble_changes_of_a_recovery_are_private_until_the_close() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        before = await cluster.ledger((3, 3, 3), range(4))
        cluster["b0"].add_error = Code.IO_ERROR
        cluster["b3"].holds_acks = True
        async with cluster.client() as client:
            opening = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            await until(lambda: cluster["b3"].added)
            await asyncio.sleep(0.1)
            assert (await cluster.stored()).segments == before.segments
            cluster["b3"].release()
            reader = await opening
            assert reader.last_add_confirmed == 3
        # Entries 0 to 2 were confirmed when the writer sent 3: those stay where they are.
        expected = (*before.segments, Segment(3, ("b3", "b1", "b2")))
        assert (await cluster.stored()).segments == expected

    simulated(main)


def test_rule_7_a_failed_recovery_starts_again_from_the_stored_metadata() -> None:
    """It forgets its own ensembles, and sees those of a re-replication in between."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 3), range(4))
        cluster["b0"].add_error = cluster["b3"].add_error = cluster["b4"].add_error = Code.IO_ERROR
        async with cluster.client() as client:
            with pytest.raises((NotEnoughBookiesError, RecoveryError)) as failed:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert not failed.value.outcome_known
            cluster["b4"].add_error = Code.OK
            cluster["b4"].entries = dict(cluster["b0"].entries)
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(
                cluster.store, LEDGER, stored,
                lambda now: now.with_ensemble_from(0, ("b4", "b1", "b2")),
            )  # fmt: skip
            cluster["b0"].asked.clear()
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 3
            assert cluster["b0"].asked == []
        assert (await cluster.stored()).segments == (Segment(0, ("b4", "b1", "b2")),)

    simulated(main)


def test_a_recovery_that_cannot_write_back_says_so_and_is_no_failed_writer() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 3), range(4))
        cluster["b0"].add_error = Code.IO_ERROR
        async with cluster.client() as client:
            with pytest.raises(RecoveryError, match="cannot be written back") as failed:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            error = failed.value
            assert not error.outcome_known
            assert "b0" in error.causes
            assert "gave up" not in str(error)
            assert "open the ledger with recovery" in error.remedy
            cluster["b0"].add_error = Code.OK
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 3

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_rule_9_a_bad_digest_is_no_answer(shape: tuple[int, int, int]) -> None:
    """This holds for its last entry, and for the entries that decide where the ledger ends."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(4))
        corrupt, other = cluster["b0"], cluster["b1"]

        def damaged(ask: Ask) -> bytes:
            if ask.entry == -1:  # The last entry: its LAC would move the end of the ledger.
                return cluster.entry(9, lac=8)[:-1] + b"?"
            return cluster.entry(ask.entry)[:-1] + b"?"

        corrupt.says = damaged
        other.says = other.silent
        async with cluster.client() as client:
            # Two are unknown already when the LAC is read, so nothing is covered.
            with pytest.raises(RecoveryError, match="answered to find its last entry"):
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert cluster["b2"].fenced
            other.says = None
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 3
            named = {(one.bookie, one.kind.value) for one in client.suspects()}
            assert named == {("b0", "bad-digest")}

    simulated(main)


def test_rule_19_a_recovery_closes_only_a_ledger_in_recovery() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6))
        for bookie in cluster.bookies.values():
            bookie.holds_acks = True
        async with cluster.client() as client:
            opening = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            await until(lambda: cluster["b1"].added)
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(
                cluster.store, LEDGER, stored, lambda now: now.with_state(LedgerState.OPEN)
            )
            for bookie in cluster.bookies.values():
                bookie.release()
            with pytest.raises(RecoveryError, match="set its state back to OPEN"):
                await opening
        assert (await cluster.stored()).state is LedgerState.OPEN

    simulated(main)


def test_rule_20_an_earlier_close_is_kept() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6))
        for name in ("b1", "b2"):
            cluster[name].holds_acks = True
        async with cluster.client() as client:
            opening = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            await until(lambda: cluster["b1"].added)
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(cluster.store, LEDGER, stored, lambda now: now.with_close(4, 45))
            cluster["b1"].release()
            reader = await opening
            assert reader.last_add_confirmed == 4  # it has read 5
        closed = await cluster.stored()
        assert (closed.last_entry_id, closed.length) == (4, 45)

    simulated(main)


def test_rules_22_and_42_entries_are_written_back_unchanged_with_the_old_lac(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Read in several rounds: the first entries are confirmed before the last ones are sent.
    monkeypatch.setattr(recovery, "WINDOW_ENTRIES", 2)

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6), on=lambda n: ["b0", "b1"] if n < 3 else ["b0"])
        for entry in (3, 4, 5):  # in flight when the writer died
            cluster["b0"].entries[entry] = cluster.entry(entry, lac=1)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 5
            assert reader.length == cluster.length(5)
        for bookie in cluster.bookies.values():
            assert [entry for entry, _, _ in bookie.added] == [2, 3, 4, 5]
            for entry, flags, data in bookie.added:
                assert flags & Flag.RECOVERY_ADD
                whole = cluster.codec.unpack(data, entry)
                assert whole.payload == payload(entry)
                assert whole.ledger_length == cluster.length(entry)
                assert lac_of(data) == 1  # that of the fencing, not the advancing one

    simulated(main)


@pytest.mark.parametrize("begun", [False, True])
def test_the_outcome_is_unknown_if_a_recovery_fails_after_it_began(begun: bool) -> None:
    """The metadata becomes unreadable before the recovery, or while it reads on."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))

        def damage(ask: Ask | None = None) -> object:
            cluster.metadata.unreadable[LEDGER] = b"damaged"
            return ...

        if begun:
            cluster["b0"].says = damage
        else:
            damage()
        async with cluster.client() as client:
            with pytest.raises(UnreadableMetadataError) as caught:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
        assert caught.value.outcome_known is not begun

    simulated(main)


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
@pytest.mark.parametrize("at", ["fencing", "reading on"])
def test_a_bookie_that_refuses_the_password_ends_the_recovery(
    at: str, shape: tuple[int, int, int]
) -> None:
    """One refusal is enough, whatever the others answer. The ledger is not closed."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(6))
        refused = error_of(Code.UNAUTHORIZED, LEDGER, 6, "b1")
        fencing = at == "fencing"
        cluster["b1"].says = lambda ask: refused if (ask.entry == LAST_ENTRY) is fencing else ...
        for other in ("b0", "b2"):
            cluster[other].answers_in_s = 0.5
        async with cluster.client() as client:
            with pytest.raises(UnauthorizedError) as failed:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert not failed.value.outcome_known
            assert (await cluster.stored()).state is LedgerState.IN_RECOVERY
            assert not any(bookie.added for bookie in cluster.bookies.values())
            cluster["b1"].says = None
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 5

    simulated(main)


def test_a_recovery_that_takes_too_long_can_be_repeated() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6))
        for bookie in cluster.bookies.values():
            bookie.holds_acks = True
        config = dataclasses.replace(CONFIG, recovery_timeout_s=2.0)
        async with cluster.client(config) as client:
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(RecoveryError, match="was not recovered within 2 s") as failed:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert asyncio.get_running_loop().time() - began_s == pytest.approx(2.0)
            assert not failed.value.outcome_known
            assert "Nothing is lost" in failed.value.remedy
            assert (await cluster.stored()).state is LedgerState.IN_RECOVERY
            for bookie in cluster.bookies.values():
                bookie.release()
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 5

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
@pytest.mark.parametrize("code", [Code.IO_ERROR, Code.TOO_MANY_REQUESTS])
def test_an_error_does_not_count_as_a_denial(shape: tuple[int, int, int], code: Code) -> None:
    """Two denials of entry 5 would end the ledger before it. One denial and an error do not."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        size = shape[0]
        members = [f"b{(5 + k) % size}" for k in range(3)]
        await cluster.ledger(
            shape, range(6),
            on=lambda n: members[:1] if n == 5 else [f"b{(n + k) % size}" for k in range(3)],
        )  # fmt: skip
        has, fails, _ = (cluster[name] for name in members)
        has.says = lambda ask: None if ask.entry == 5 else ...
        failure = error_of(code, LEDGER, 5, fails.name)
        fails.says = lambda ask: failure if ask.entry == 5 else ...
        async with cluster.client() as client:
            with pytest.raises(RecoveryError, match="whether entry 5 exists") as failed:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert failed.value.entry_id == 5
            assert failed.value.causes[has.name] == "TimeoutError"
            assert failed.value.causes[fails.name] == str(failure)
            assert client.suspects() == []
            has.says = None
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 5
            assert (await reader.read_entry(5)).payload == payload(5)

    simulated(main)


def test_proven_entries_are_written_back_before_the_others_are_requested_again() -> None:
    """In a striped ledger, some entries of one round may be proven, and the next one not."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((4, 3, 2), range(9))
        for entry in range(4, 9):
            for bookie in cluster.bookies.values():
                if entry in bookie.entries:
                    bookie.entries[entry] = cluster.entry(entry, lac=3)
        failures = 0

        def first_time(ask: Ask) -> object:
            nonlocal failures
            if ask.entry != 6 or failures >= 3:
                return ...
            failures += 1
            return error_of(Code.IO_ERROR, LEDGER, 6, "b")

        for bookie in cluster.bookies.values():
            bookie.says = first_time  # type: ignore[assignment]
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert failures == 3
            assert reader.last_add_confirmed == 8
            assert reader.length == cluster.length(8)
            assert [e.payload async for e in reader.read()] == [payload(n) for n in range(9)]
        for bookie in cluster.bookies.values():
            for entry, _, data in bookie.added:
                assert cluster.codec.unpack(data, entry).payload == payload(entry)

    simulated(main)


@pytest.mark.parametrize("readable", [True, False])
def test_a_ledger_without_anything_to_write_back_keeps_its_length(*, readable: bool) -> None:
    """The length is advisory: without any replica to read it from, it is 0."""

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        segments = (Segment(0, ("b0", "b1", "b2")), Segment(10, ("b3", "b4", "b5")))
        await cluster.ledger((3, 3, 2), range(10), segments=segments)
        if not readable:
            for name in ("b0", "b1", "b2"):
                cluster[name].down = True
        async with cluster.client() as client:
            await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
        closed = await cluster.stored()
        assert closed.last_entry_id == 9
        assert closed.length == (cluster.length(9) if readable else 0)

    simulated(main)


def test_a_member_that_is_still_connecting_receives_the_written_back_entries() -> None:
    """An ack quorum has it, and the ledger is closed: later, nobody would send it."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6), on=lambda n: ["b0", "b1"])
        cluster["b2"].connects_in_s = 0.5
        async with cluster.client() as client:
            await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert [entry for entry, _, _ in cluster["b2"].added] == [5]
            assert cluster["b2"].entries[5] == cluster["b0"].entries[5]

    simulated(main)


def test_a_member_without_the_entries_does_not_make_recovery_read_them_singly() -> None:
    """Many entries are requested from one member, and then from the next one."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(100), on=lambda n: ["b1", "b2"])
        for name in ("b1", "b2"):
            cluster[name].answers_in_s = 0.1
            for entry in range(100):
                cluster[name].entries[entry] = cluster.entry(entry, lac=-1)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 99
        assert sorted(cluster["b0"].entries) == list(range(100))
        assert len(cluster["b2"].asked) <= 5, (
            "the bookie is asked only for the first entry of each round"
        )

    simulated(main)


def test_a_replacement_for_which_the_closed_ledger_has_no_room_is_not_used() -> None:
    """Otherwise the entries would be written back, and the ledger could not be closed."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(6))
        await fill(cluster)
        stored = await cluster.store.read_ledger(LEDGER)
        room = ledger_bytes_max(LedgerState.IN_RECOVERY) - NODE_BYTES_MAX - 20
        custom = {"k": stored.value.custom["k"] + bytes(room)}
        await update_ledger(
            cluster.store, LEDGER, stored,
            lambda now: dataclasses.replace(
                now.with_state(LedgerState.IN_RECOVERY), custom=custom
            ) if now.custom != custom else None,
        )  # fmt: skip
        cluster["b1"].add_error = Code.READ_ONLY
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 5
        assert cluster["b3"].added == []
        assert len((await cluster.stored()).segments) == 1

    simulated(main)


# -- passwords that the metadata does not have --------------------------------------------------

KEY, WRONG = master_key(PASSWORD), b"wrong"
TWO_SEGMENTS = (Segment(0, ("b0", "b1", "b2")), Segment(6, ("b3", "b4", "b0")))


async def of_format_1(cluster: FakeCluster, *, known_to: Collection[str]) -> LedgerMetadata:
    """Create an old writer's ledger, which only some bookies know, with entries 0 to 5.

    Its metadata has neither a digest nor a password, so only bookies can check the password.
    """
    kind = DigestType.CRC32  # what is assumed for such a ledger
    written = await cluster.ledger((3, 3, 3), range(6), segments=TWO_SEGMENTS, digest=kind)
    old = dataclasses.replace(written, digest=None, password=None, format_version=1)
    await cluster.store.delete_ledger(LEDGER)
    await cluster.store.create_ledger(old, LEDGER)
    for name, bookie in cluster.bookies.items():
        if name in known_to:
            bookie.key = KEY
        else:
            bookie.entries.clear()
            bookie.says = lambda ask, name=name: (  # type: ignore[misc]
                error_of(Code.NO_ENTRY if ask.flags & Flag.DO_FENCING else Code.NO_LEDGER,
                         LEDGER, ask.entry, name)
            )  # fmt: skip
    return old


def fenced(cluster: FakeCluster) -> set[str]:
    return {name for name, bookie in cluster.bookies.items() if bookie.fenced}


async def recovers(client: Client, password: bytes) -> LedgerReader:
    return await client.open_ledger(LEDGER, password=password, recover=True)


@pytest.mark.parametrize("known_to", [{"b1"}, {"b0", "b1", "b2"}, {"b3"}])
def test_a_wrong_password_changes_nothing_if_any_bookie_knows_the_ledger(
    known_to: set[str],
) -> None:
    """It would close the ledger as empty, and leave its key on bookies that did not know it."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        old = await of_format_1(cluster, known_to=known_to)
        async with cluster.client() as client:
            with pytest.raises(UnauthorizedError) as refused:
                await recovers(client, WRONG)
            assert refused.value.outcome_known
            assert await cluster.stored() == old
            assert fenced(cluster) == set()
            reader = await recovers(client, PASSWORD)
            assert reader.last_add_confirmed == 5
            assert (await cluster.stored()).closed

    simulated(main)


@pytest.mark.parametrize("known_to", [{"b1"}, {"b0", "b1", "b2"}, {"b3"}])
def test_a_password_that_a_bookie_refuses_is_also_wrong_if_it_may_be_unverified(
    known_to: set[str],
) -> None:
    """Autorecovery knows no password of such a ledger, and recovers it with the empty one."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        old = await of_format_1(cluster, known_to=known_to)
        async with cluster.client() as client:
            with pytest.raises(UnauthorizedError) as refused:
                await client.open_ledger(
                    LEDGER, password=WRONG, recover=True, unverified_password=True
                )
            assert refused.value.outcome_known
            assert await cluster.stored() == old
            assert fenced(cluster) == set()
            assert (await recovers(client, PASSWORD)).last_add_confirmed == 5

    simulated(main)


def test_a_password_that_nobody_can_check_is_not_used() -> None:
    """The causes name the bookies that might have known it."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        old = await of_format_1(cluster, known_to={"b0", "b1", "b2"})
        cluster["b0"].down = cluster["b1"].down = True
        cluster["b2"].says = cluster["b2"].silent
        async with cluster.client() as client:
            with pytest.raises(UnauthorizedError, match="cannot be checked") as refused:
                await recovers(client, PASSWORD)
            assert refused.value.causes.keys() == {"b0", "b1", "b2"}
            assert isinstance(refused.value.causes["b2"], BookieTimeoutError)
            assert refused.value.outcome_known
            assert "unverified_password" in refused.value.remedy
            assert await cluster.stored() == old
            assert fenced(cluster) == set()

    simulated(main)


def test_one_bookie_that_refuses_the_password_is_enough() -> None:
    """Bookies of older segments, which may be slow or gone, are not asked."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await of_format_1(cluster, known_to={"b0", "b1", "b2", "b3", "b4"})
        async with cluster.client() as client:
            with pytest.raises(UnauthorizedError) as refused:
                await recovers(client, WRONG)
        assert "cannot be checked" not in str(refused.value)
        assert not cluster["b1"].asked
        assert not cluster["b2"].asked

    simulated(main)


def test_one_bookie_that_accepts_the_password_is_enough() -> None:
    """The bookie may know the ledger only from an explicit LAC."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await of_format_1(cluster, known_to={"b0", "b1", "b2", "b4"})
        cluster["b3"].down = True
        cluster["b4"].entries.clear()
        async with cluster.client() as client:
            assert (await recovers(client, PASSWORD)).last_add_confirmed == 5
        assert "b4" in fenced(cluster)
        asked = [ask for name in ("b1", "b2") for ask in cluster[name].asked]
        assert all(ask.entry != LAST_ENTRY for ask in asked), "the newest segment is asked first"

    simulated(main)
