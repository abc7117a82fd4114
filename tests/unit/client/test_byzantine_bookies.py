"""Byzantine bookies with and without `assume_liars`: what is lost, refused, and read.

The ensemble is that of the Byzantine table: E=4, Wq=3, Aq=2, with one Byzantine bookie. Entry n
belongs on the bookies n, n+1 and n+2 (modulo 4).
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from contextlib import aclosing

import pytest

from quire.codec.entry.digest import DigestType
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.core.append.quorum import covered, write_set
from quire.core.recovery import EntryVerdict, RecoveryVotes, TrustModel
from quire.errors import NoSuchEntryError, ReadError, RecoveryError, UsageError
from tests.support.bookies.fake_bookies import (
    LEDGER,
    PASSWORD,
    Answer,
    Ask,
    FakeBookie,
    FakeCluster,
    payload,
    simulated,
)

SHAPE = (4, 3, 2)
UNFORGEABLE, FORGEABLE = TrustModel(1, False), TrustModel(1, True)


def without(*bookies: str) -> Callable[[int], list[str]]:
    """Store the entries without these bookies, which never received the newest one (entry 4)."""
    return lambda entry: [
        name
        for name in (f"b{index}" for index in write_set(entry, 4, 3))
        if entry != 4 or name not in bookies
    ]


async def reads(cluster: FakeCluster, last: int, *, recover: bool, liars: int = 0) -> None:
    """Opening gives entries 0..last, as they were written."""
    async with cluster.client() as client:
        reader = await client.open_ledger(
            LEDGER, password=PASSWORD, recover=recover, assume_liars=liars
        )
        assert reader.last_add_confirmed == last
        found = [entry.payload async for entry in reader.read()]
        assert found == [payload(entry) for entry in range(last + 1)]


# -- denials ----------------------------------------------------------------------------------


def test_a_false_denial_and_an_honest_one_lose_an_entry_without_the_option() -> None:
    """The documented condition for a loss of entry 4, which b0 and b1 acknowledged.

    b2 was down and says so honestly, b1 denies the entry, and b0 answers too late.
    """

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5), on=without("b2"))
        cluster["b1"].says = lambda ask: cluster["b1"].no(ask) if ask.entry == 4 else ...
        cluster["b0"].says = cluster["b0"].silent
        await reads(cluster, 3, recover=True)

    simulated(main)


def test_with_the_option_an_entry_survives_a_false_denial() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5), digest=DigestType.HMAC, on=without("b2"))
        cluster["b1"].says = lambda ask: cluster["b1"].no(ask) if ask.entry == 4 else ...
        cluster["b0"].says = cluster["b0"].silent
        with pytest.raises(RecoveryError):  # rather than a loss
            await reads(cluster, 4, recover=True, liars=1)
        cluster["b0"].says = None
        await reads(cluster, 4, recover=True, liars=1)

    simulated(main)


def test_with_the_option_every_member_must_deny_an_entry() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5), digest=DigestType.HMAC)
        quiet = cluster["b2"]  # of the write set of 5, which does not exist
        quiet.says = lambda ask: None if ask.entry == 5 else ...
        with pytest.raises(RecoveryError, match="assume_liars is 1") as failed:
            await reads(cluster, 4, recover=True, liars=1)
        assert "assume_liars" in failed.value.remedy
        quiet.says = None
        await reads(cluster, 4, recover=True, liars=1)

    simulated(main)


def test_a_bookie_that_dropped_an_acknowledged_entry_is_tolerated() -> None:
    """Nothing is lost if the honest bookie of the ack quorum answers."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5), digest=DigestType.HMAC, on=without("b1", "b2"))
        await reads(cluster, 4, recover=True, liars=1)
        assert 4 in cluster["b1"].entries  # written back

    simulated(main)


def test_coverage_takes_byzantine_bookies_into_account() -> None:
    """An add must not reach Aq through a Byzantine bookie that reported a fence and then
    acknowledged.
    """
    for known, plain, doubted in (
        ({0, 1, 2, 3}, True, True),
        ({0, 1, 2}, True, False),
        ({0, 2}, False, False),
        ({0}, False, False),
    ):
        assert covered(known, *SHAPE) is plain
        assert UNFORGEABLE.covered(known, *SHAPE) is doubted
    assert TrustModel(1).covered({0, 1, 2}, 4, 4, 3)
    assert not TrustModel(2).covered({0, 1, 2}, 4, 4, 3)


# -- entries that are made up -----------------------------------------------------------------


def forging(cluster: FakeCluster, *entries: int) -> Callable[[Ask], Answer | type[Ellipsis]]:
    """A bookie that answers for these with something else, and a digest that is right."""

    def says(ask: Ask) -> Answer | type[Ellipsis]:
        return cluster.entry(ask.entry, b"FORGED") if ask.entry in entries else ...

    return says


def test_a_recomputed_crc_is_read_without_the_option() -> None:
    """This is why the option exists, and why HMAC is better."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5), state=LedgerState.CLOSED)
        cluster["b2"].says = forging(cluster, 2)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert (await reader.read_entry(2)).payload == b"FORGED"

    simulated(main)


@pytest.mark.parametrize("recover", [False, True], ids=["closed", "recovered"])
def test_with_the_option_a_forged_copy_is_outvoted_and_its_bookie_reported(recover: bool) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        state = LedgerState.OPEN if recover else LedgerState.CLOSED
        await cluster.ledger(SHAPE, range(5), state=state)
        cluster["b0"].says = forging(cluster, *range(5))
        async with cluster.client() as client:
            reader = await client.open_ledger(
                LEDGER, password=PASSWORD, recover=recover, assume_liars=1
            )
            assert reader.last_add_confirmed == 4
            found = [entry.payload async for entry in reader.read()]
            assert found == [payload(entry) for entry in range(5)]
            assert {(one.bookie, one.kind.value) for one in client.suspects()} == {
                ("b0", "wrong-entry")
            }

    simulated(main)


@pytest.mark.parametrize("liar", ["b0", "b1", "b2"])
def test_a_lac_in_a_copy_that_is_equal_otherwise_is_not_believed(liar: str) -> None:
    """The LAC is not part of the content, on which the members agree."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5))
        cluster[liar].says = lambda ask: (
            cluster.entry(ask.entry, lac=1000) if 0 <= ask.entry < 4 else ...
        )
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, assume_liars=1)
            async with aclosing(reader.tail(0)) as tail:
                found = [(await anext(tail)).payload for _ in range(4)]
                assert found == [payload(entry) for entry in range(4)]
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(tail), 0.02)
            assert reader.last_add_confirmed == 3

    simulated(main)


def test_copies_that_do_not_agree_are_not_read() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5), state=LedgerState.CLOSED, on=without("b1"))
        cluster["b2"].says = forging(cluster, 4)
        cluster["b3"].down = True
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, assume_liars=1)
            # b0 has the original, but nothing distinguishes it from b2.
            with pytest.raises(
                ReadError, match="no 2 of the 2 copies that could be read agree"
            ) as failed:
                await reader.read_entry(4)
            assert not failed.value.outcome_known

    simulated(main)


@pytest.mark.parametrize("shape", [SHAPE, (3, 3, 2)])
def test_unconfirmed_entries_end_where_every_replica_denies_the_next(
    shape: tuple[int, int, int],
) -> None:
    """The read once failed because copies do not agree, although there was no copy."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(shape, range(5))
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, assume_liars=1)
            found = [entry.payload async for entry in reader.read_unconfirmed(0)]
            assert found == [payload(entry) for entry in range(5)]
            with pytest.raises(NoSuchEntryError):
                _ = [entry async for entry in reader.read_unconfirmed(3, 5)]
            cluster["b1"].die()
            with pytest.raises(ReadError, match="cannot be decided"):
                _ = [entry async for entry in reader.read_unconfirmed(5)]

    simulated(main)


def test_an_invented_entry_after_the_end_is_not_accepted() -> None:
    """The LAC that it carries is not trusted either."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5))

        def says(ask: Ask) -> Answer | type[Ellipsis]:
            return cluster.entry(90, b"MADE UP", lac=89) if ask.entry == -1 else ...

        cluster["b3"].says = says
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, assume_liars=1)
            assert reader.last_add_confirmed == 3
            seen = await client.open_ledger(LEDGER, password=PASSWORD)
            assert seen.last_add_confirmed == 89  # without the option it is accepted
            with pytest.raises(NoSuchEntryError):
                await seen.read_entry(89)
        cluster["b3"].says = forging(cluster, 5)
        with pytest.raises(RecoveryError, match="assume_liars is 1"):
            await reads(cluster, 4, recover=True, liars=1)

    simulated(main)


def test_with_an_ack_quorum_of_2f_plus_1_recovery_always_decides() -> None:
    """With Aq >= 2f+1, a single copy cannot be that of an acknowledged entry."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 3), range(5))
        cluster["b2"].says = forging(cluster, 2, 5)
        await reads(cluster, 4, recover=True, liars=1)

    simulated(main)


@pytest.mark.parametrize(
    ("trust", "shape", "says", "verdict"),
    [
        (UNFORGEABLE, (3, 3, 2), "x??", EntryVerdict.EXISTS),
        (UNFORGEABLE, (3, 3, 2), "nn?", EntryVerdict.OPEN),
        (UNFORGEABLE, (3, 3, 2), "nne", EntryVerdict.UNDECIDABLE),
        (UNFORGEABLE, (3, 3, 2), "nnn", EntryVerdict.ABSENT),
        (UNFORGEABLE, (3, 3, 3), "nn?", EntryVerdict.ABSENT),
        (FORGEABLE, (3, 3, 2), "x??", EntryVerdict.OPEN),
        (FORGEABLE, (3, 3, 2), "xx?", EntryVerdict.EXISTS),
        (FORGEABLE, (3, 3, 2), "xy?", EntryVerdict.OPEN),
        (FORGEABLE, (3, 3, 2), "xyx", EntryVerdict.EXISTS),
        (FORGEABLE, (3, 3, 2), "xyn", EntryVerdict.UNDECIDABLE),
        (FORGEABLE, (3, 3, 2), "xnn", EntryVerdict.UNDECIDABLE),
        (FORGEABLE, (3, 3, 2), "nnn", EntryVerdict.ABSENT),
        (FORGEABLE, (3, 3, 3), "xnn", EntryVerdict.ABSENT),
        (FORGEABLE, (3, 3, 3), "xyn", EntryVerdict.ABSENT),
        (FORGEABLE, (3, 3, 3), "xn?", EntryVerdict.OPEN),
        (FORGEABLE, (3, 3, 3), "xne", EntryVerdict.UNDECIDABLE),
        (FORGEABLE, (3, 3, 3), "nne", EntryVerdict.ABSENT),
        (FORGEABLE, (4, 4, 3), "xnnd", EntryVerdict.EXISTS),
        (FORGEABLE, (3, 3, 3), "xnd", EntryVerdict.EXISTS),
        (FORGEABLE, (3, 3, 3), "xdd", EntryVerdict.UNDECIDABLE),
        (FORGEABLE, (4, 4, 3), "xyde", EntryVerdict.UNDECIDABLE),
        (FORGEABLE, (4, 4, 3), "nnd?", EntryVerdict.OPEN),
        (UNFORGEABLE, (3, 3, 2), "nnd", EntryVerdict.UNDECIDABLE),
    ],
)
def test_the_answers_of_the_members_lead_to_the_expected_verdict(
    trust: TrustModel, shape: tuple[int, int, int], says: str, verdict: EntryVerdict
) -> None:
    """The answer of each member: x and y are contents, d a bad digest, n no, e an error, ? none
    yet.
    """
    votes = RecoveryVotes(0, *shape, trust)
    for index, word in enumerate(says):
        if word != "?":
            tell(votes, index, word)
    assert votes.verdict(0) is verdict
    if verdict is EntryVerdict.EXISTS:
        assert votes.content(0) == "x"


def tell(votes: RecoveryVotes, index: int, word: str) -> None:
    if word == "n":
        votes.negative(0, index)
    elif word in "ed":
        votes.neither(0, index, damaged=word == "d")
    else:
        votes.positive(0, index, word)


QUORUMS = [
    (write, ack, liars)
    for write in range(1, 5)
    for ack in range(1, write + 1)
    for liars in range(ack)
]


@pytest.mark.parametrize("forgeable", [False, True], ids=["hmac", "crc"])
@pytest.mark.parametrize(("write", "ack", "liars"), QUORUMS)
def test_an_acknowledged_entry_survives_every_combination_of_lies(
    write: int, ack: int, liars: int, forgeable: bool
) -> None:
    """An acknowledged entry x is never absent and never replaced.

    This holds whoever acknowledged it, whoever is Byzantine, whatever they answer and whoever is
    silent. It is found if all honest members answer, for certain with Aq >= 2f+1 or a digest that
    cannot be forged.
    """
    trust = TrustModel(liars, forgeable)
    for acked in itertools.combinations(range(write), ack):
        for lying in itertools.combinations(range(write), liars):
            may_say = [
                ("nedxy" if forgeable else "nedx") if member in lying
                else "xe" if member in acked else "nxe"
                for member in range(write)
            ]  # fmt: skip
            for says in itertools.product(*may_say):
                votes = RecoveryVotes(0, write, write, ack, trust)
                for member, word in enumerate(says):
                    tell(votes, member, word)
                    verdict = votes.verdict(0)
                    assert verdict is not EntryVerdict.ABSENT, (acked, lying, says)
                    if verdict is EntryVerdict.EXISTS:
                        assert votes.content(0) == "x", (acked, lying, says)
                honest = [says[member] for member in range(write) if member not in lying]
                if "e" not in honest and (not forgeable or ack >= 2 * liars + 1):
                    assert verdict is EntryVerdict.EXISTS, (acked, lying, says)


@pytest.mark.parametrize("forgeable", [False, True], ids=["hmac", "crc"])
def test_a_bad_digest_never_ends_a_ledger(forgeable: bool) -> None:
    """All honest members may have damaged copies while a Byzantine bookie denies the entry.

    No acknowledged entry is given up then, although it may not be found.
    """
    trust = TrustModel(1, forgeable)
    for acked in itertools.combinations(range(4), 3):
        for liar in range(4):
            may_say = ["nd" if m == liar else "xd" if m in acked else "nd" for m in range(4)]
            for says in itertools.product(*may_say):
                votes = RecoveryVotes(0, 4, 4, 3, trust)
                for member, word in enumerate(says):
                    tell(votes, member, word)
                    assert votes.verdict(0) is not EntryVerdict.ABSENT, (acked, liar, says)


# -- digests ----------------------------------------------------------------------------------


def test_hmac_needs_no_comparison_of_copies_unless_its_password_is_public() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5), digest=DigestType.HMAC, state=LedgerState.CLOSED)
        for name in ("b1", "b2", "b3"):
            cluster[name].down = True
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, assume_liars=1)
            assert (await reader.read_entry(4)).payload == payload(4)
            await cluster.store.delete_ledger(LEDGER)
            writer = await client.create_ledger(
                ensemble_size=4, write_quorum=3, ack_quorum=2, digest="hmac", ledger_id=LEDGER
            )
            writer.abandon()
            opened = await client.metadata.read_ledger(LEDGER)
            assert opened.value.password == b""
            for bookie in cluster.bookies.values():
                bookie.down = False
                bookie.entries.clear()
            open_one = await client.open_ledger(LEDGER, assume_liars=1)
            assert open_one._trust.compares_copies

    simulated(main)


# -- what cannot work -------------------------------------------------------------------------


def test_more_byzantine_bookies_than_an_ack_quorum_tolerates_are_refused() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(5))
        async with cluster.client() as client:
            for liars in (2, 3, -1):
                with pytest.raises(UsageError, match=r"assume_liars must be from 0 to 1") as failed:
                    await client.open_ledger(LEDGER, password=PASSWORD, assume_liars=liars)
                assert failed.value.remedy
            assert not any(bookie.asked for bookie in cluster.bookies.values())

    simulated(main)


def test_the_configuration_sets_the_default_of_assume_liars() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        config = dataclasses.replace(cluster.config, assume_liars=1)
        await cluster.ledger(SHAPE, range(5), state=LedgerState.CLOSED)
        async with cluster.client(config) as client:
            assert (await client.open_ledger(LEDGER, password=PASSWORD))._trust.byzantine == 1
            opened = await client.open_ledger(LEDGER, password=PASSWORD, assume_liars=0)
            assert opened._trust.byzantine == 0
            with pytest.raises(UsageError, match="must be from 0 to 0"):
                await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=1)

    simulated(main)


def test_a_byzantine_bookie_in_quarantine_is_asked_last() -> None:
    """Quarantine changes the order of reads, not the evidence that is needed."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(40), state=LedgerState.CLOSED)
        liar: FakeBookie = cluster["b0"]
        liar.says = lambda ask: cluster.entry(ask.entry)[:-1] + b"?"
        async with cluster.client() as client:
            for _ in range(3):
                reader = await client.open_ledger(LEDGER, password=PASSWORD)
                for entry in range(40):
                    assert (await reader.read_entry(entry)).payload == payload(entry)
            assert len(liar.asked) == 1
            [suspect] = client.suspects()
            assert (suspect.bookie, suspect.kind.value, suspect.count) == ("b0", "bad-digest", 1)
            # No other bookie is left, so it is asked, but its bytes are not returned.
            cluster["b1"].down = cluster["b2"].down = True
            cluster["b1"].die()
            cluster["b2"].die()
            with pytest.raises(ReadError):
                await reader.read_entry(0)
            assert len(liar.asked) > 1

    simulated(main)
