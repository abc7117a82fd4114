"""The problems of stored data."""

from __future__ import annotations

from quire.http.views.problems.cluster import problems
from quire.http.views.problems.collection import Collection
from quire.http.views.problems.lost_bookies import ALONE
from quire.metadata.ledgers.deletions import Deletion
from quire.replication.explain.at_risk import AtRisk
from quire.streams.ownership.lost_ledgers import LostLedgers
from quire.streams.ownership.named_ledgers import NamedLedger, Owner
from tests.support.http.problems import WELL, bookie


def test_unreadable_ledgers_are_the_first_problem() -> None:
    risk = AtRisk(ledgers=9, whole=True, lacking=4, unreadable=2, by_group={ALONE: 4})
    first = problems([bookie("a"), bookie("b", "gone")], WELL, risk)[0]
    assert first.severity == "bad"
    assert first.what.startswith("Some entries of 2 ledgers cannot be read")


ORDERS = Owner("stream", "my orders", "/streams")


def test_the_problem_of_lost_stream_ledgers_names_the_truncation() -> None:
    lost = (
        NamedLedger(4, ORDERS, "segment 2, 1,000 records", after="3:0:0", like=3),
        NamedLedger(9, ORDERS, "segment 5, 10 records", after="6:0:0"),
    )
    (found,) = problems([bookie("a")], WELL, lost=LostLedgers(lost, {"stream": 2}))
    assert found.what == (
        "Stream my orders in namespace /streams needs 2 ledgers that do not exist: ledger 4 "
        "(segment 2, 1,000 records), ledger 9 (segment 5, 10 records)"
    )
    assert found.next == (
        "First, so that bookies keep the entries: quire cluster gc off. To restore the ledgers "
        "from the bookies: quire ledger recover 4 --like 3, quire ledger recover 9 --like LEDGER "
        "(LEDGER is another ledger with the same quorums and checksum). If too few bookies have "
        "the entries, restore a backup of the metadata store that has the ledger, or give up what "
        "is lost. To see the segments: quire stream show 'my orders' --namespace /streams. To "
        "read past the gap and be told what is missing: quire stream read 'my orders' --namespace "
        "/streams --on-gap deliver. To read past it silently: quire stream read 'my orders' "
        "--namespace /streams --on-gap skip. To give up the lost records for good, and all records "
        "before them: quire stream truncate 'my orders' --namespace /streams --before 6:0:0"
    )
    assert found.doing.startswith("Nothing: bookies delete the entries at their next search")
    assert found.risk == (
        "All records of these ledgers are lost, unless a bookie still has them. Readers fail "
        "there, and those that skip the gap never get these records. The rest of the stream can be "
        "read"
    )


def test_the_problem_of_a_lost_ledger_says_who_deleted_it() -> None:
    deletion = Deletion("alice@vm.7", 1_000, "quire ledger delete --force")
    lost = (NamedLedger(4, ORDERS, "segment 2", deletion=deletion), NamedLedger(9, ORDERS, "x"))
    (found,) = problems([bookie("a")], WELL, lost=LostLedgers(lost, {"stream": 2}))
    assert found.doing.endswith(
        "Ledger 4: alice@vm.7 deleted it at 1970-01-01T00:00:01Z (quire ledger delete --force)"
    )
    (found,) = problems([bookie("a")], WELL, lost=LostLedgers(lost[1:], {"stream": 1}))
    assert "Somebody deleted the ledger, or the metadata was restored" in found.doing


def test_collection_that_is_off_stays_off_while_a_ledger_is_lost() -> None:
    """One finding asked to switch it off although it was, and the next one to switch it on."""
    lost = LostLedgers((NamedLedger(4, ORDERS, "segment 2", like=5),), {"stream": 1})
    off = Collection("garbage collection is switched off by h.1")
    found, switch = problems([bookie("a")], WELL, lost=lost, collection=off)
    assert "gc off" not in found.next
    assert found.next.startswith(
        "To restore the ledger from the bookies: quire ledger recover 4 --like 5. If too few"
    )
    assert found.doing.startswith("Garbage collection is switched off, so bookies keep the entries")
    assert switch.next.startswith("Leave it off until no ledger is missing any more")
    (switch,) = problems([bookie("a")], WELL, lost=LostLedgers(whole=True), collection=off)
    assert switch.next == "quire cluster gc on"


def test_truncation_is_not_advised_if_the_last_segment_is_lost() -> None:
    lost = (NamedLedger(4, ORDERS, "segment 2, in progress"),)
    (found,) = problems([bookie("a")], WELL, lost=LostLedgers(lost, {"stream": 1}))
    assert "truncate" not in found.next


def test_an_object_without_its_ledger_is_a_problem() -> None:
    lost = (NamedLedger(4, Owner("object", "a b", "models"), "entries 0 to 9"),)
    (found,) = problems([bookie("a")], WELL, lost=LostLedgers(lost, {"object": 1}))
    assert found.risk == "The object cannot be read"


def test_a_state_machine_without_its_snapshot_is_a_problem() -> None:
    lost = (NamedLedger(4, Owner("state machine", "m", "machines"), "its snapshot"),)
    (found,) = problems([bookie("a")], WELL, lost=LostLedgers(lost, {"object": 1}))
    assert found.risk == (
        "Its snapshot cannot be read. The state machine can start without it only if its stream "
        "still has all commands"
    )
