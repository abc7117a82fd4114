"""Options of Spark's Kafka connector are errors that name what Quire has in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from quire.errors import UsageError
from quire.spark.from_kafka import PLACES, kafka_advice
from quire.spark.options import (
    READING,
    STREAM_READING,
    STREAM_WRITING,
    TABLE_READING,
    WRITING,
    ReadOptions,
    WriteOptions,
)
from quire.spark.streams.options import StreamReadOptions, TableOptions
from quire.spark.streams.write_options import StreamWriteOptions

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "spark" / "spark-from-kafka.md"
KNOWN = {*READING, *STREAM_READING, *TABLE_READING, *WRITING, *STREAM_WRITING}
KINDS: list[tuple[Callable[..., Any], Mapping[str, str]]] = [
    (ReadOptions.parse, {}),
    (StreamReadOptions.parse, {"stream": "s"}),
    (TableOptions.parse, {"table": "lag"}),
    (WriteOptions.parse, {"dataset": "d"}),
    (lambda given: StreamWriteOptions.parse(given, streaming=True), {"stream": "s"}),
    (lambda given: StreamWriteOptions.parse(given, streaming=False), {"stream": "s"}),
]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(("parse", "others"), KINDS)
def test_the_error_names_the_option_to_use(
    parse: Callable[..., Any], others: Mapping[str, str], name: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse({"metadata": "sqlite:////m.db", **others, name.lower(): "x"})
    assert f"'{name}': {'' if PLACES[name].startswith('leave') else 'use '}" in str(caught.value)


def test_one_error_names_all_kafka_options() -> None:
    given = {
        "kafka.bootstrap.servers": "kafka:9092", "subscribe": "orders", "kafka.acks": "all",
        "startingOffsets": "latest", "fetchOffset.numRetries": "3",
    }  # fmt: skip
    with pytest.raises(UsageError) as caught:
        ReadOptions.parse({name.lower(): value for name, value in given.items()})
    assert str(caught.value) == (
        "5 options of Kafka's connector cannot be used for reading. "
        "'kafka.bootstrap.servers': use 'metadata' (the metadata URI), or the variable "
        "QUIRE_METADATA; 'subscribe': use 'stream' (one) or 'streams' (several, with commas); "
        "'startingOffsets': use 'start' (earliest, latest, a position, seq:N or time:ISO); "
        "'kafka.acks', 'fetchOffset.numRetries': leave them out"
    )


def test_other_unknown_options_get_no_kafka_advice() -> None:
    assert kafka_advice(["stream", "failondataloss", "topics"]) == ""
    with pytest.raises(UsageError, match="Did you mean 'stream'"):
        ReadOptions.parse({"strem": "s"})


def test_the_options_in_the_advice_exist() -> None:
    """The quoted words of an advice are options, or forms of their values."""
    for place in PLACES.values():
        named = set(re.findall(r"'(\w+)'", place)) - {*KNOWN}
        assert named <= {"subscription", "writerId", "txnId"}, place
    assert not {*PLACES} & KNOWN


def test_the_page_lists_every_option() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Options side by side")[2]
    for name, place in PLACES.items():
        if place == "leave it out":
            continue
        listed = re.search(rf"^\|[^|]*`{re.escape(name)}`[^|]*\|([^|]*)\|", table, re.MULTILINE)
        listed = listed or (name.startswith("kafka.ssl.") and re.search(
            r"^\|[^|]*`kafka\.ssl\.\*`[^|]*\|([^|]*)\|", table, re.MULTILINE))  # fmt: skip
        assert listed, name
        for ours in re.findall(r"'(\w+)'", place):
            assert f"`{ours}`" in listed[1], name
