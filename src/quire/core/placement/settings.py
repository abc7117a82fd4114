"""Placement settings in one line, for command lines and environment variables.

For example `rack-aware,min_racks=3,enforce_racks,locations=metadata`, or
`region-aware,regions=east;west`.
"""

from __future__ import annotations

from dataclasses import fields

from quire._runtime.names.suggest import did_you_mean
from quire._runtime.units import parse_duration
from quire.config import PlacementConfig
from quire.core.placement.policies import POLICIES
from quire.errors import UsageError

_KINDS = {one.name: str(one.type) for one in fields(PlacementConfig)}
_WHOLE = ("int", "PositiveInt")
_BOOLEANS = {
    "true": True,
    "yes": True,
    "1": True,
    "": True,
    "false": False,
    "no": False,
    "0": False,
}
_LIST = ";"


def parse_placement(text: str) -> PlacementConfig:
    """Return the placement configuration in a text such as 'rack-aware,min_racks=3'.

    The text has the name of a policy, followed by settings. A policy of your own receives the
    settings that Quire does not know as its `options`. Raises UsageError, which names the setting
    that is wrong.
    """
    policy, *settings = [part.strip() for part in text.split(",")]
    known: dict[str, object] = {"policy": policy}
    options: dict[str, str] = {}
    for setting in settings:
        name, _, value = (part.strip() for part in setting.partition("="))
        if name in _KINDS and name not in ("policy", "options"):
            known[name] = _value(name, value)
        elif policy in POLICIES:
            raise UsageError(
                f"a placement has no setting {name!r}",
                remedy=did_you_mean(name, _KINDS, f"It has {', '.join(_KINDS)}"),
            )
        else:
            options[name] = value
    return PlacementConfig(**known, options=options)  # type: ignore[arg-type]


def _allowed(name: str) -> str:
    """Return what a setting that is not a text may be, in words."""
    kind = _KINDS[name]
    if kind.startswith("bool"):
        return "true or false"
    if kind in _WHOLE:
        return "a whole number"
    return "a duration, such as 30s or 5m" if name.endswith("_s") else "a number"


def _value(name: str, text: str) -> object:
    kind = _KINDS[name]
    try:
        if kind.startswith("bool"):
            return _BOOLEANS[text.lower()]
        if kind in _WHOLE:
            return int(text)
        if name.endswith("_s"):
            return parse_duration(text)
        if kind == "float":
            return float(text)
    except (KeyError, ValueError):
        raise UsageError(
            f"{text!r} is not a valid value of the placement setting {name}",
            remedy=f"Use {_allowed(name)}",
        ) from None
    if kind.startswith("tuple"):
        return tuple(part for part in text.split(_LIST) if part)
    return text
