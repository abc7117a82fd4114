"""All knobs, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from quire_simulator.knobs import bookie, client, rare, replication, shared, storage, streams
from quire_simulator.knobs.knob import Knob, function_of

ROOMS = (shared, storage, bookie, client, rare, replication, streams, rare)


@cache
def knobs() -> Mapping[str, Knob]:
    """Return all knobs, and import every module that they change.

    A module that was first imported during a run would bind a drawn number and keep it. The
    defaults are read now, because a test may change them later.
    """
    found = {knob.key: knob for room in ROOMS for knob in room.KNOBS}
    for knob in found.values():
        assert knob.default is not None
        for place in knob.also:
            import_module(place)
        for parameter in knob.parameters:
            function_of(parameter)
    return found
