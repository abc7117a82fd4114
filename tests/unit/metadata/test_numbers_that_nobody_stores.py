"""JSON numbers in nodes of the metadata store that no version of Quire writes.

`1e400` is valid JSON, and Python reads it as infinity: its conversion to a whole number is an
OverflowError, which once ended commands, pages and the auditor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from quire.codec.metadata.stored_json import stored_json
from quire.codec.metadata.underreplication import SwitchedOff
from quire.core.placement.tables import read_groups
from quire.errors import MetadataError, UsageError
from quire.metadata import outages
from quire.metadata.bookies import damage_notes, start_commands, tls_files, unwritable
from quire.metadata.bookies.collection import BookieMark, CollectionMark, CollectionRefusal, Switch
from quire.metadata.bookies.directories import BookieDirectories, GivenUp, LogMark
from quire.metadata.bookies.orders import Order, What
from quire.replication.marks import job_announcements, pauses
from quire.streams.namespace.settings import decode_settings
from quire.streams.topics.topic_metadata import decode_topic

BAD = ["1e400", "-1e400", "NaN", "Infinity", "9" * 40, "9" * 5_000, "[" * 100_000]


def of_switch(data: bytes) -> None:
    assert Switch.decode(data) == Switch(), "the node switches collection off all the same"


def of_switched_off(data: bytes) -> None:
    assert SwitchedOff.decode(data) == SwitchedOff()


def of_pause(data: bytes) -> None:
    assert pauses._decoded(data, "rebalance", "cluster") == pauses.Pause(
        "rebalance", "cluster", "", 0
    )


def of_announcement(data: bytes) -> None:
    assert job_announcements._decoded(data) is None


def of_mark(data: bytes) -> None:
    assert BookieMark.decode_any(data).refusal is not None
    BookieMark.decode(data)


REFUSED = CollectionRefusal(CollectionMark(2, "t"), 7, False, "")
FOUND = damage_notes.FoundDamage("/d", "f", 7, 1, (2,), 3, 9)
MARKS = {"a": LogMark(1, "n", 7, 9, "")}
DIRECTORIES = BookieDirectories({"/d": "id"}, (GivenUp("i", "/d", "s", 7),), MARKS)
JOB = {"kind": "k", "target": "t", "by": "b", "started_ms": 7, "said_ms": 7, "far": {"ledgers": 7}}
TOPIC = {"format": 1, "id": "i", "partitioner": "murmur2", "partitions": 7}
CASES: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "switch": (Switch(7, "b").encode(), of_switch),
    "switched off": (SwitchedOff("b", 7).encode(), of_switched_off),
    "pause": (b'{"kind": "rebalance", "target": "cluster", "by": "b", "at_ms": 7}', of_pause),
    "job": (json.dumps(JOB).encode(), of_announcement),
    "mark": (BookieMark(CollectionMark(7, "t"), REFUSED).encode(), of_mark),
    "order": (Order(next(iter(What)), 7, "b").encode(), Order.decode),
    "damage": (damage_notes.encode([FOUND]), damage_notes.decode),
    "directories": (DIRECTORIES.encode(), BookieDirectories.decode),
    "outages": (outages.encode([outages.Outage(7, 7)]), outages.decode),
    "start command": (
        b'{"words": 7, "working_directory": "", "variables": []}',
        start_commands.decode,
    ),
    "settings": (b'{"quire": 1, "retention_ms": 7}', lambda data: decode_settings(data, "/s")),
    "topic": (json.dumps(TOPIC).encode(), lambda data: decode_topic("t", "/t", data, 0)),
}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad[:8])
@pytest.mark.parametrize("case", CASES)
def test_a_node_with_such_a_number_is_refused_as_damaged(case: str, bad: str) -> None:
    data, decode = CASES[case]
    places = list(re.finditer(rb"(?<=[ \[:])7(?=[,}\]])", data))
    assert places, data
    for one in places:
        damaged = data[: one.start()] + bad.encode() + data[one.end() :]
        if case == "settings" and bad == "9" * 40:
            continue  # a time may be as long as that
        try:
            decode(damaged)
        except (ValueError, MetadataError):
            continue
        assert decode.__name__.startswith("of_"), damaged


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad[:8])
def test_a_registration_with_such_a_number_is_one_without_the_property(bad: str) -> None:
    assert unwritable.from_properties({unwritable.PROPERTY: bad}) is None
    assert tls_files.from_properties({tls_files.PROPERTY: bad}) is None
    with pytest.raises(UsageError):
        read_groups(b'{"g": %s}' % bad.encode())


def test_numbers_and_texts_that_are_stored_are_read() -> None:
    assert stored_json('{"a": [1, -9223372036854775808, 0.5, "1e400"]}') == {
        "a": [1, -(2**63), 0.5, "1e400"]
    }
    assert stored_json(b"9" * 300, large_numbers=True) == int("9" * 300)
    with pytest.raises(ValueError, match="too large"):
        stored_json("1e400", large_numbers=True)
