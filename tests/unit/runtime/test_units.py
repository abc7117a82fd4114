"""How people write counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import quire
from quire._runtime.units import are, counted, host_port, plural
from quire.codec.metadata.registration import default_bookie_id


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
def test_counts_and_their_nouns(noun: str, several: str) -> None:
    assert counted(1, noun) == f"1 {noun}"
    assert [counted(n, noun) for n in (0, 2)] == [f"0 {several}", f"2 {several}"]
    assert (plural(noun, 1), plural(noun, 3)) == (noun, several)


def test_their_verb() -> None:
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


def test_the_ids_of_bookies_stay_as_they_are() -> None:
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
    assert "codec/metadata/registration.py" in found  # the expression finds what it should
