"""Tables of locations: files for people, and the JSON that Pulsar keeps (metadata spec, 6.8).

A file has lines `NAME LOCATION` (`#` begins a comment); one that ends in `.toml` has a table
`[locations]` with `"NAME" = "LOCATION"`. A name is a bookie id, or the host that bookies register.

The JSON is `{GROUP: {BOOKIE ID: {"rack": "/rack", "hostname": "host"}}}`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from quire.core.placement.values import parse_location
from quire.errors import UsageError

DEFAULT_GROUP = "default"
"""Into which bookies are put that have none."""


def parse_lines(text: str) -> dict[str, str]:
    """UsageError names the line."""
    table: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise UsageError(f"line {number}: a line is a bookie and its location, not {line!r}")
        name, location = words
        if name in table:
            raise UsageError(f"line {number}: {name} has a location already, {table[name]}")
        try:
            table[name] = parse_location(location)
        except UsageError as error:
            raise UsageError(f"line {number}: {error}") from None
    return table


def parse_toml(text: str) -> dict[str, str]:
    try:
        found = tomllib.loads(text).get("locations")
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"this is not TOML: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("there is no table [locations]")
    return parse_mapping(found)


def parse_mapping(found: Mapping[Any, Any]) -> dict[str, str]:
    table: dict[str, str] = {}
    for name, location in found.items():
        if not isinstance(name, str) or not isinstance(location, str):
            raise UsageError(f"{name!r} = {location!r}: a bookie and its location are texts")
        table[name] = parse_location(location)
    return table


def parse_groups(data: bytes) -> dict[str, str]:
    """Bookie ids and host names -> location, out of the JSON. An id counts more than a host."""
    hosts: dict[str, str] = {}
    ids: dict[str, str] = {}
    for members in read_groups(data).values():
        for bookie, facts in members.items():
            rack = facts.get("rack")
            if not isinstance(rack, str) or not rack.strip("/ "):
                continue  # Pulsar keeps bookies without a rack, too
            ids[bookie] = parse_location(rack)
            host = facts.get("hostname")
            if isinstance(host, str) and host:
                hosts[host] = ids[bookie]
    return {**hosts, **ids}


def read_groups(data: bytes) -> dict[str, dict[str, dict[str, Any]]]:
    """The JSON with all that is in it; UsageError if it is something else."""
    try:
        groups = json.loads(data or b"{}")
    except ValueError as error:
        raise UsageError(f"this is not JSON: {error}") from None
    good = isinstance(groups, dict) and all(
        isinstance(members, dict) and all(isinstance(facts, dict) for facts in members.values())
        for members in groups.values()
    )
    if not good:
        raise UsageError("this is not a table of groups of bookies")
    return dict(groups)


def with_location(
    data: bytes, bookie: str, location: str | None, group: str = "", host: str = ""
) -> bytes:
    """The JSON with another location of one bookie, or without the bookie (None). What else is
    there stays as it is."""
    groups = read_groups(data)
    where = next((name for name, members in groups.items() if bookie in members), None)
    facts: dict[str, Any] = {} if where is None else groups[where].pop(bookie)
    if where is not None and not groups[where]:
        del groups[where]
    if location is not None:
        facts["rack"] = parse_location(location)
        if host:
            facts["hostname"] = host
        groups.setdefault(group or where or DEFAULT_GROUP, {})[bookie] = facts
    return json.dumps(groups, sort_keys=True).encode()
