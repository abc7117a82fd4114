"""The reasons why a bookie does not accept all adds, as its registration says.

They are a property of the registration, in JSON. Apache's bookies have no such property, and
Apache's programs ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from quire.codec.metadata.stored_json import stored_json

PROPERTY = "quire.unwritable"
"""The name of the registration's property that has the reasons. The property is missing if the
bookie accepts all adds."""

LOADING = "loading"
"""The reason that a bookie gives while it is still loading its log."""
HELD = "held"
"""The reason that a bookie gives while an operator keeps it read-only, until its next start."""
ORDERED = "ordered"
"""The reason that a bookie gives while it is being drained or decommissioned (`orders`)."""
FULL = "full"
"""The reason for a data directory whose disk has too little free space."""
LOST = "lost"
"""The reason for a data directory that has lost data, which is not restored yet."""
FAILED = "failed"
"""The reason for a data directory that cannot be used, because its disk fails or its content is not
that of the bookie."""


@dataclass(frozen=True, slots=True)
class Unwritable:
    """One reason why a bookie does not accept all adds."""

    why: str
    """One of the reasons in this module, or another one of a later version."""
    directory: str = ""
    """The data directory, or "" if the reason is not about a directory."""


def as_properties(reasons: Iterable[Unwritable]) -> dict[str, str]:
    """Return the reasons as properties of a registration. Without reasons there are none."""
    found = [asdict(one) for one in reasons]
    return {PROPERTY: json.dumps(found)} if found else {}


def from_properties(properties: Mapping[str, str]) -> tuple[Unwritable, ...] | None:
    """Return the reasons in the properties of a registration.

    The result is None if there are none, or if they cannot be decoded.
    """
    try:
        found = [
            Unwritable(str(one["why"]), str(one["directory"]))
            for one in stored_json(properties[PROPERTY])
        ]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(found)
