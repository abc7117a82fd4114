"""One bookie for people: its actions, and its problems."""

from __future__ import annotations

from typing import Any

from quire.http.views.bookie_page import actions, problems_of
from quire.http.views.problems.problem import Problem
from quire.metadata.bookies.orders import Order, What
from quire.metadata.bookies.unwritable import FULL

ID = "10.0.0.1:3181"
DRAIN = Order(What.DRAIN, 0, "ops-1")
RETIRED = Order(What.RETIRED, 0, "ops-1")


def bookie(state: str = "writable") -> dict[str, Any]:
    return {"id": ID, "state": state}


def report(held: bool = False, state: str = "writable", why: str = "") -> dict[str, Any]:
    unwritable = [{"why": why, "directory": "/d", "details": ""}] if why else []
    return {"held_readonly": held, "state": state, "unwritable": unwritable}


def possible(found: dict[str, Any]) -> set[str]:
    return {name for name, one in found.items() if one["possible"]}


def test_the_possible_actions_follow_the_state_of_a_bookie() -> None:
    assert possible(actions(bookie(), report(), None, "")) == {"read_only", "decommission"}
    held = report(held=True)
    assert possible(actions(bookie("read-only"), held, None, "")) == {"writable", "decommission"}
    drained = report()
    assert possible(actions(bookie("read-only"), drained, DRAIN, "")) == {
        "decommission", "take_back",
    }  # fmt: skip
    assert possible(actions(bookie("read-only"), report(), RETIRED, "")) == set()
    assert possible(actions(bookie("gone"), None, None, "it is gone")) == {
        "recover", "decommission",
    }  # fmt: skip


def test_an_impossible_action_states_the_reason() -> None:
    found = actions(bookie(), None, None, "It has no HTTP server")
    assert found["read_only"] == {"possible": False, "why": "It has no HTTP server"}
    assert found["writable"] == {"possible": False, "why": "It has no HTTP server"}
    assert all(one["why"] for one in found.values() if not one["possible"])


def test_a_full_disk_is_not_called_an_operators_order() -> None:
    """The page said that no operator had made the bookie read-only."""
    found = actions(bookie("read-only"), report(why=FULL), None, "")
    assert found["writable"]["why"].startswith("Its disk is full")
    assert actions(bookie(), report(), None, "")["writable"]["why"] == "It is writable already"
    partly = report(why=FULL)  # the disk of one of several directories
    assert actions(bookie(), partly, None, "")["writable"]["why"] == "It is writable already"


def test_a_bookie_that_no_ledger_names_is_decommissioned() -> None:
    found = actions(bookie("gone"), None, None, "it is gone", unneeded=True)
    assert possible(found) == {"decommission"}
    assert found["recover"]["why"].endswith("To remove it, decommission it")


def test_the_page_of_a_bookie_has_only_its_problems() -> None:
    def problem(what: str, *bookies: str) -> Problem:
        return Problem("bad", what, "", bookies=bookies)

    mine = [
        problem("It is not registered: stopped", ID),
        problem("9 disks are nearly full, such as that of 10.0.0.2:3181", "10.0.0.2:3181", ID),
    ]
    others = [problem(f"{ID}0 is gone", f"{ID}0"), problem(f"{ID} is healthy")]
    assert problems_of(ID, [*others, *mine]) == mine
