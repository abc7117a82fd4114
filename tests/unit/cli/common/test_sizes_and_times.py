"""Options for sizes and times accept the spellings of the configuration."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from quire.cli.common.options import Duration, Size
from quire.cli.stream.options import end_place, place
from quire.errors import UsageError
from quire.http.server.api import Field
from quire.spark.streams.options import StreamReadOptions
from quire.streams import AtTime
from quire.streams.namespace.settings import parse_setting
from quire.streams.read.positions import place_text


@click.command()
@click.option("--size", type=Size(1, 1 << 40), default=7)
@click.option("--time", type=Duration(max=604_800))
@click.option("--lac", type=Duration(plain="ms"))
@click.option("--report", type=Duration(0, 3_600, plain="ms"), default=100, show_default=True)
@click.option("--delay", type=Duration(whole=True))
def show(**given: object) -> None:
    click.echo(repr(given))


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("size", "65536", 65_536),
        ("size", "64MiB", 64 << 20),
        ("time", "1.5", 1.5),
        ("time", "1d", 86_400.0),
        ("lac", "100", 0.1),
        ("lac", "1s", 1.0),
        ("report", "3600000", 3_600.0),
        ("report", "1h", 3_600.0),
        ("delay", "15m", 900),
    ],
)
def test_an_option_takes_a_number_or_a_unit(option: str, text: str, value: object) -> None:
    result = CliRunner().invoke(show, [f"--{option}", text])
    assert result.exit_code == 0, result.output
    assert f"'{option}': {value!r}" in result.stdout


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("size", "0", "0 is not in the range 1<=x"),
        ("size", "2t", "is not in the range"),
        ("size", "64x", "'64x' is not a size: use bytes, or 512KiB, 64MiB, 1GiB"),
        ("time", "8d", "691200.0 is not in the range"),
        ("time", "nan", "'nan' is not a duration: use seconds, or 500ms"),
        ("lac", "soon", "'soon' is not a duration: use milliseconds, or 500ms"),
        ("report", "3600001", "3600001.0 is not in the range 0<=x<=3600000"),
        ("report", "2h", "7200000.0 is not in the range 0<=x<=3600000"),
        ("delay", "1.5s", "'1.5s' is not a whole number of seconds"),
    ],
)
def test_invalid_values_of_an_option_are_refused(option: str, text: str, problem: str) -> None:
    result = CliRunner().invoke(show, [f"--{option}", text])
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())


def test_the_default_and_the_range_in_a_help_have_one_unit() -> None:
    help_text = " ".join(CliRunner().invoke(show, ["--help"]).stdout.split())
    assert "[default: 100; 0<=x<=3600000]" in help_text


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("roll_bytes", "64MiB", 64 << 20),
        ("retention_bytes", "0", 0),
        ("bytes_max", "1t", 1 << 40),
        ("entry_bytes", "8k", 8 << 10),
        ("streams_max", "7", 7),
        ("retention_s", "1d", 86_400.0),
        ("retention_s", "90", 90.0),
        ("roll_interval_s", "1ms", 0.001),
    ],
)
def test_a_setting_of_streams_takes_a_unit(name: str, text: str, value: object) -> None:
    assert parse_setting(name, text) == (name, value)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("roll_bytes", "much", "setting roll_bytes: 'much' is not a size"),
        ("retention_bytes", "-1", "must not be negative"),
        ("retention_s", "-1h", "must not be negative"),
        ("retention_s", "0.1ms", "0 or at least 0.001"),
        ("roll_interval_s", "0", "must be at least 0.001"),
        ("retention_ms", "soon", "setting retention_s: 'soon' is not a duration: use milliseconds"),
        ("streams_max", "1k", "setting streams_max: '1k' is not a whole number"),
    ],
)
def test_invalid_values_of_a_setting_are_refused(name: str, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_setting(name, text)


def test_a_field_of_the_http_api_takes_a_number_or_a_unit() -> None:
    delay = Field("delay_seconds", "seconds", "how long", maximum=86_400)
    assert [delay.parse(one) for one in (600, "600", "10m", "1d")] == [600, 600, 600, 86_400]
    size = Field("max_bytes", "bytes", "how much", minimum=1)
    assert [size.parse(one) for one in (1, "64MiB")] == [1, 64 << 20]
    for field, value in ((delay, "2d"), (delay, "500ms"), (size, 0), (size, "0"), (size, 1.5)):
        with pytest.raises(UsageError, match="must be an integer from"):
            field.parse(value)
    with pytest.raises(UsageError, match="delay_seconds cannot be used: 'soon' is not a duration"):
        delay.parse("soon")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("time:2026-01-31T12:00:00+01:00", "time:2026-01-31T11:00:00+00:00"),
        ("time:9999-12-31T23:59:59.9999", "time:9999-12-31T23:59:59.999000+00:00"),
        ("time:9999-12-31T23:59:59-05:00", "the time 253,402,318,799,000 ms after 1970"),
        ("seq:7", "seq:7"),
        ("latest", "latest"),
    ],
)
def test_every_accepted_position_can_be_formatted(text: str, shown: str) -> None:
    """`stream truncate` and `read` ended with an unexpected ValueError for a time in year 10000."""
    assert place_text(place(text)) == shown


def test_a_time_between_two_milliseconds_leaves_out_no_record_of_that_millisecond() -> None:
    """It was rounded to the nearest one. `stream truncate` could drop a record too many."""
    whole_ms = 1_769_860_800_000
    for fraction, start_ms, end_ms in [
        ("", 0, 0), (".000001", 0, 1), (".0006", 0, 1), (".001", 1, 1), (".0014", 1, 2),
    ]:  # fmt: skip
        text = f"time:2026-01-31T12:00:00{fraction}"
        start, end = AtTime(whole_ms + start_ms), AtTime(whole_ms + end_ms)
        assert (place(text), end_place(text)) == (start, end)
        given = {"metadata": "m", "stream": "s", "start": text, "end": text}
        options = StreamReadOptions.parse(given, environ={})
        assert (options.start.default, options.end.default) == (start, end)
    assert place("time:1969-12-31T23:59:59.9995") == AtTime(-1)
    assert end_place("time:1969-12-31T23:59:59.9995") == AtTime(0)
    assert place_text(end_place("time:9999-12-31T23:59:59.9999")) == (
        "the time 253,402,300,800,000 ms after 1970"
    )
