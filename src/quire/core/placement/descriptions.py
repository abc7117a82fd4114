"""Text for messages about placement: bookies, their racks, and why they cannot be chosen."""

from __future__ import annotations

from collections.abc import Sequence

from quire._runtime.units import are, counted, some_of
from quire.core.placement.values import Place, View, Wanted

NAMES_MAX = 8
"""The largest number of bookies that a message names for one rack."""
RACKS_MAX = 8
"""The largest number of racks that one message names."""


def bookies_of(places: Sequence[Place]) -> str:
    """Return the bookies and their racks as text, such as 'b1, b2 in /a; b3 in /b'."""
    racks: dict[str, list[str]] = {}
    for place in places:
        racks.setdefault(place.location, []).append(place.bookie_id)
    listed = [f"{some_of(names, NAMES_MAX)} in {rack}" for rack, names in sorted(racks.items())]
    return "; ".join(listed[:RACKS_MAX]) + ("; ..." if len(listed) > RACKS_MAX else "")


def situation(wanted: Wanted, view: View) -> str:
    """Return the writable bookies as text, each with the reason not to choose it, if any.

    For example: '5 are writable: rack /a: b1, b2, b3; rack /b: b4 (failed 3 s ago), b5 (in the
    ensemble)'.
    """
    places = dict(view.writable)
    for bookie in view.misplaced:
        places[bookie] = view.find(bookie)
    if not places:
        return "none is writable"
    gone = set(wanted.gone.values())
    if places.keys() <= gone:
        return "no other bookie is writable"
    if places.keys() <= gone | set(wanted.members):
        return "every writable bookie is in the ensemble already"
    told = {bookie: _flaw(bookie, wanted, view) for bookie in places}
    if not view.located:
        names = [f"{b} ({told[b]})" if told[b] else b for b in sorted(places)]
        return f"{len(places)} {are(len(places))} writable: {some_of(names, NAMES_MAX * 2)}"
    racks: dict[str, list[str]] = {}
    for bookie, place in sorted(places.items()):
        flaw = told[bookie]
        racks.setdefault(place.location, []).append(f"{bookie} ({flaw})" if flaw else bookie)
    for place in view.others.values():
        if place.location not in racks and place.bookie_id in wanted.gone.values():
            racks[place.location] = []
    listed = [
        f"rack {rack}: {some_of(names, NAMES_MAX) if names else 'none writable'}"
        for rack, names in sorted(racks.items())
    ]
    more = f"; and {counted(left, 'more rack')}" if (left := len(listed) - RACKS_MAX) > 0 else ""
    return f"{len(places)} {are(len(places))} writable: {'; '.join(listed[:RACKS_MAX])}{more}"


def _flaw(bookie: str, wanted: Wanted, view: View) -> str:
    """Return why the bookie is not chosen, or only as a last resort; '' if there is no reason."""
    if bookie in view.misplaced:
        return view.misplaced[bookie]
    if bookie in wanted.gone.values():
        return "to be replaced"
    if bookie in wanted.members:
        return "in the ensemble"
    if bookie in wanted.exclude:
        return "excluded"
    if bookie in view.failed_s:
        ago = view.failed_s[bookie]
        return "in quarantine" if ago < 0 else f"failed {ago:.0f} s ago"
    return ""
