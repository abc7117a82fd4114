"""The reasons why a bookie does not accept all adds, as its registration says.

They are a property of the registration, in JSON. Apache's bookies have no such property, and
Apache's programs ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

PROPERTY = "quire.unwritable"
"""The name of the property. It is missing if the bookie accepts all adds."""

LOADING = "loading"
"""The bookie is still loading its log."""
HELD = "held"
"""An operator keeps it read-only until its next start."""
ORDERED = "ordered"
"""It is being drained or decommissioned (`orders`)."""
FULL = "full"
"""There is too little space in the directory."""
LOST = "lost"
"""A part of the data in the directory is lost, and not restored yet."""
FAILED = "failed"
"""The directory cannot be used, because its disk fails or its content is not that of the bookie."""


@dataclass(frozen=True, slots=True)
class Unwritable:
    """One reason why a bookie does not accept all adds."""

    why: str
    """One of the reasons in this module, or another one of a later version."""
    directory: str = ""
    """The data directory, or "" if the reason is not about a directory."""


def as_properties(reasons: Iterable[Unwritable]) -> dict[str, str]:
    """Return the properties of the registration of a bookie with these reasons."""
    found = [asdict(one) for one in reasons]
    return {PROPERTY: json.dumps(found)} if found else {}


def from_properties(properties: Mapping[str, str]) -> tuple[Unwritable, ...] | None:
    """Return the reasons in the properties of a registration.

    The result is None if there are none, or if they cannot be decoded.
    """
    try:
        found = [
            Unwritable(str(one["why"]), str(one["directory"]))
            for one in json.loads(properties[PROPERTY])
        ]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(found)
