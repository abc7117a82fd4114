"""The problems of copies in too few racks: locations that are missing or wrong, and misplaced
ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.units import counted, some_of, verb
from quire.http.views.problems.problem import Bookie, Problem, ago
from quire.http.views.topology import MOVE_COPIES, data_warnings


def of_places(
    bookies: Sequence[Bookie], autorecovery: Mapping[str, Any], now_ms: int
) -> Iterator[Problem]:
    """Yield the problems that may lose every copy of an entry with one rack.

    Nothing is reported if no bookie has a location, because then nobody uses racks.
    """
    for one in data_warnings(bookies):
        yield Problem(one.severity, one.what, one.next, one.risk, one.doing, one.bookies)
    placement = autorecovery.get("placement")
    if placement is not None and placement["misplaced"]:
        number = placement["misplaced"]
        named = some_of(map(str, placement["first"]))
        yield Problem(
            "warn",
            f"{number:,} of {counted(placement['ledgers'], 'ledger')} "
            f"{verb('violate', number)} the placement policy: the copies of "
            f"an entry are in too few racks{f' (such as ledger {named})' if named else ''}",
            "Compare the locations with the real racks: quire cluster locations list. "
            f"{MOVE_COPIES}",
            "Every copy of an entry may be lost with one rack",
            "Nothing, unless autorecovery runs with repair_placement. The number is that of the "
            f"auditor's last check of placement, {ago(placement['at_ms'], now_ms)}. It stays until "
            "the next one, and there is none without placement_check_interval_s",
        )
