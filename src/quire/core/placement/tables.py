"""Tables of locations: files for people, and the JSON of Pulsar's `BookieRackAffinityMapping`.

A file has lines `NAME LOCATION`, and `#` begins a comment. A file whose name ends in `.toml` has a
table `[locations]` with `"NAME" = "LOCATION"`. A name is a bookie id, or the host that bookies
register.

The JSON is `{GROUP: {BOOKIE ID: {"rack": "/rack", "hostname": "host"}}}`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from quire.codec.metadata.stored_json import stored_json
from quire.core.placement.values import parse_location
from quire.errors import UsageError

DEFAULT_GROUP = "default"
"""The group, in Pulsar's JSON, of a bookie whose location is set without a group."""


def parse_lines(text: str) -> dict[str, str]:
    """Return the locations in a text of lines `NAME LOCATION`, by bookie id or host.

    Raises UsageError, which names the line that is wrong.
    """
    table: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise UsageError(
                f"line {number} is {line!r}, but a line must have a bookie and its location"
            )
        name, location = words
        if name in table:
            raise UsageError(
                f"line {number} gives bookie {name} a second location; the first is {table[name]}"
            )
        try:
            table[name] = parse_location(location)
        except UsageError as error:
            raise UsageError(f"line {number} has a location that cannot be used: {error}") from None
    return table


def parse_toml(text: str) -> dict[str, str]:
    """Return the locations in the table `[locations]` of a TOML text, by bookie id or host.

    Raises UsageError, which says what is wrong.
    """
    try:
        found = tomllib.loads(text).get("locations")
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the table of locations is not TOML: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("the file of locations has no table [locations]")
    return parse_mapping(found)


def parse_mapping(found: Mapping[Any, Any]) -> dict[str, str]:
    """Check a mapping from bookies to locations, and return it with normalised locations.

    Raises UsageError if a name is not a string or a location is not valid.
    """
    table: dict[str, str] = {}
    for name, location in found.items():
        if not isinstance(name, str) or not isinstance(location, str):
            raise UsageError(
                f"the table of locations has {name!r} = {location!r}, but a bookie and its "
                "location must be strings"
            )
        table[name] = parse_location(location)
    return table


def parse_groups(data: bytes) -> dict[str, str]:
    """Return the locations in Pulsar's JSON of racks, by bookie id and by host name.

    A bookie id takes precedence over an equal host name. Bookies without a rack are left out.
    Raises UsageError if the JSON or a location is not valid.
    """
    hosts: dict[str, str] = {}
    ids: dict[str, str] = {}
    for members in read_groups(data).values():
        for bookie, facts in members.items():
            rack = facts.get("rack")
            if not isinstance(rack, str) or not rack.strip("/ "):
                continue  # Pulsar also stores bookies without a rack
            ids[bookie] = parse_location(rack)
            host = facts.get("hostname")
            if isinstance(host, str) and host:
                hosts[host] = ids[bookie]
    return {**hosts, **ids}


def read_groups(data: bytes) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the contents of Pulsar's JSON of racks: the facts about each bookie, by group and id.

    Raises UsageError if the bytes are not a JSON table of groups.
    """
    try:
        groups = stored_json(data or b"{}", large_numbers=True)
    except ValueError as error:
        raise UsageError(f"its content is not JSON: {error}") from None
    good = isinstance(groups, dict) and all(
        isinstance(members, dict) and all(isinstance(facts, dict) for facts in members.values())
        for members in groups.values()
    )
    if not good:
        raise UsageError(
            "its content is not a table of groups of bookies, {group: {bookie: {...}}}"
        )
    return dict(groups)


def with_location(
    data: bytes, bookie: str, location: str | None, group: str = "", host: str = ""
) -> bytes:
    """Return Pulsar's JSON of racks after a change of the location of one bookie.

    If `location` is None, the bookie is removed. A bookie stays in its group unless another `group`
    is given. A group that becomes empty is removed. Everything else stays the same.

    Args:
        data: The JSON to change. Empty bytes stand for an empty table.
        bookie: The id of the bookie.
        location: The new location, or None.
        group: The group to put the bookie into.
        host: The host name to store with the bookie. If it is empty, a stored host name stays.

    Raises:
        UsageError: `data` is not Pulsar's JSON of racks, or the location is invalid.
    """
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
