"""How people write sizes, durations, counts and addresses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

import quire
from quire._runtime.units import (
    acknowledged_text,
    are,
    counted,
    duration_text,
    end_text,
    host_port,
    parse_duration,
    parse_size,
    plural,
    size_text,
)
from quire.codec.metadata.registration import default_bookie_id


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("10_000", 10_000),
        ("1e3", 1_000),
        (" 64 MiB ", 64 << 20),
        ("512k", 512 << 10),
        ("512KB", 512 << 10),
        ("1.5g", 3 << 29),
        ("2T", 2 << 40),
        ("7b", 7),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "plain", "seconds"),
    [
        ("90", "s", 90.0),
        ("90", "ms", 0.09),
        ("0", "s", 0.0),
        ("0.1", "s", 0.1),
        ("500ms", "s", 0.5),
        ("300ms", "ms", 0.3),
        ("15m", "ms", 900.0),
        ("12 H", "s", 43_200.0),
        ("1d", "s", 86_400.0),
        ("2w", "s", 1_209_600.0),
        ("1.5s", "s", 1.5),
    ],
)
def test_a_duration_is_a_number_or_has_a_unit(
    text: str, plain: Literal["s", "ms"], seconds: float
) -> None:
    assert parse_duration(text, plain) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "12q", "1.3", "1_", "5.", "nan", "inf", "9" * 99, "1e400"]
)
def test_an_invalid_size_is_refused_with_the_accepted_spellings(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size: use bytes, or 512KiB, 64MiB, 1GiB$"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "s", "5 minutes", "1y", "nan", "inf", "1e308d", "9" * 99])
def test_an_invalid_duration_is_refused_with_the_accepted_spellings(text: str) -> None:
    with pytest.raises(ValueError, match=r"use seconds, or 500ms, 30s, 15m, 12h, 7d$"):
        parse_duration(text)
    with pytest.raises(ValueError, match=r"use milliseconds, or"):
        parse_duration(text, "ms")


def test_sizes_and_durations_below_the_minimum_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^'0' is too small: use at least 1 \(in bytes\)$"):
        parse_size("0")
    with pytest.raises(ValueError, match=r"^'-1s' is too short: use at least 0 \(in seconds\)$"):
        parse_duration("-1s")
    assert (parse_size("0", least=0), parse_duration("-1s", least=-5)) == (0, -1.0)


@pytest.mark.parametrize(
    ("noun", "several"),
    [
        ("ledger", "ledgers"),
        ("entry", "entries"),
        ("key", "keys"),
        ("batch", "batches"),
        ("damaged block", "damaged blocks"),
    ],
)
def test_counts_have_the_singular_or_plural_of_their_noun(noun: str, several: str) -> None:
    assert counted(1, noun) == f"1 {noun}"
    assert [counted(n, noun) for n in (0, 2)] == [f"0 {several}", f"2 {several}"]
    assert (plural(noun, 1), plural(noun, 3)) == (noun, several)


def test_the_verb_agrees_with_the_count() -> None:
    assert [are(n) for n in (0, 1, 2)] == ["are", "is", "are"]


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("bookie-1.example.com", "bookie-1.example.com:80"),
        ("::1", "[::1]:80"),
        ("fe80::1%eth0", "[fe80::1%eth0]:80"),
        ("[::1]", "[::1]:80"),
    ],
)
def test_an_address_has_brackets_around_ipv6(host: str, shown: str) -> None:
    assert host_port(host, 80) == shown


def test_default_bookie_ids_have_no_brackets_around_ipv6() -> None:
    assert default_bookie_id("::1", 3181) == "::1:3181"


JOINED = re.compile(r"""\{[^{}]*(host|advertise|bind|address|target|LOOPBACK)[^{}]*\}:\{""")
ALLOWED = {
    "codec/metadata/registration.py",  # ids, which are names
    "_runtime/units.py",
    "metadata/uri.py",  # has its brackets from the URI
    "cli/shell/rename.py",  # ids of Apache's bookies
    "testing/cluster.py",  # 127.0.0.1
    "simulator/quire_simulator/machine/network.py",  # names of simulated hosts
}


def test_host_and_port_are_joined_in_one_place() -> None:
    root = Path(quire.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if JOINED.search(path.read_text())
    }
    assert found <= ALLOWED, found - ALLOWED
    assert "codec/metadata/registration.py" in found  # The expression finds what it should.


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (67_108_864, "67.1 MB"),
        (250_000_000, "250 MB"), (1.5e9, "1.5 GB"), (2e12, "2.0 TB"), (3e18, "3000 PB"),
    ],
)  # fmt: skip
def test_sizes_are_shown_in_the_unit_that_fits(size: float, text: str) -> None:
    assert size_text(size) == text


def test_the_last_entry_of_an_empty_ledger_is_not_shown_as_minus_one() -> None:
    assert end_text(6) == "ends at entry 6"
    assert end_text(-1) == "has no entries"
    assert acknowledged_text(0) == "only entries up to 0 are known to be acknowledged so far"
    assert acknowledged_text(-1) == "no entry is known to be acknowledged yet"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (119, "119 s"), (120, "2 min"), (4_500, "75 min"), (7_200, "2 h"),
        (172_799, "48 h"), (172_800, "2 d"),
    ],
)  # fmt: skip
def test_durations_are_shown_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
