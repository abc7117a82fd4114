"""The division of a configuration among several bookies, and their metrics on one page."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli.bookie.start import start_command
from quire.cli.servers.processes.division import check_places, check_ports, divide, parse_share
from quire.cli.servers.processes.merged_metrics import merged
from quire.configuration.fields import BookieProcessConfig
from quire.errors import UsageError
from quire.metadata.bookies.start_commands import StartCommand


def test_the_start_command_of_a_bookie_is_recorded_without_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir("/")
    words = ["bookie", "start", "--dir", "/d", "--processes", "2", "--set", "a=1"]
    environment = {"QUIRE_METADATA": "x", "QUIRE_CONFIG": "", "HOME": "/root"}
    service = start_command([*words, "--share", "1/2"], environment, ["/d/bookie-1"])
    assert service == StartCommand(("quire", *words), "", ("QUIRE_METADATA",))
    assert start_command(words, {}, ["/d", "e"]) == StartCommand(("quire", *words), "/")
    assert start_command(["-q", "tests"], {}, ["/d"]).words == (), "another program"


def directories(count: int, *given: str) -> list[tuple[str, ...]]:
    return [one.directories for one in divide(BookieProcessConfig(directories=given), count)]


def test_fewer_directories_than_bookies_are_shared() -> None:
    assert directories(3, "a", "b") == [("a/bookie-0",), ("b/bookie-1",), ("a/bookie-2",)]


def test_more_directories_than_bookies_are_divided() -> None:
    assert directories(2, "a", "b", "c") == [("a/bookie-0", "c/bookie-0"), ("b/bookie-1",)]


def test_each_bookie_gets_its_port_id_and_autorecovery_setting() -> None:
    process = BookieProcessConfig(("a",), 3181, bookie_id="b7", autorecovery=True)
    shares = divide(process, 2)
    assert [(one.port, one.bookie_id, one.autorecovery) for one in shares] == [
        (3181, "b7-0", True),
        (3182, "b7-1", False),
    ]
    with pytest.raises(UsageError, match="65536"):
        divide(BookieProcessConfig(("a",), 65_535), 2)
    assert [one.port for one in divide(BookieProcessConfig(("a",), 0), 2)] == [0, 0]


@pytest.mark.parametrize(("port", "http"), [(3181, 3182), (8081, 8080), (8080, 8080)])
def test_ports_that_overlap_are_refused(port: int, http: int) -> None:
    with pytest.raises(UsageError, match="farther apart"):
        check_ports(port, http, 2)
    check_ports(3181, 8080, 2)


def used(tmp_path: Path, *names: str) -> str:
    for name in names:
        (tmp_path / name / "current").mkdir(parents=True)
    return str(tmp_path)


def check(directory: str, count: int) -> None:
    given = (directory,)
    check_places(given, divide(BookieProcessConfig(given), count) if count > 1 else ())


def test_more_bookies_than_before_are_accepted(tmp_path: Path) -> None:
    directory = used(tmp_path, "bookie-0", "bookie-1")
    check(directory, 2)
    check(directory, 3)


def test_fewer_bookies_than_before_are_refused(tmp_path: Path) -> None:
    directory = used(tmp_path, "bookie-0", "bookie-1", "bookie-2")
    with pytest.raises(UsageError, match=r"bookie-2 holds a bookie.*--processes 3 or more"):
        check(directory, 2)
    with pytest.raises(UsageError, match=r"bookie-0 \(and 2 more\) holds a bookie"):
        check(directory, 1)


def test_the_directory_of_a_single_bookie_is_refused(tmp_path: Path) -> None:
    directory = used(tmp_path, ".")
    check(directory, 1)
    with pytest.raises(UsageError, match="without --processes"):
        check(directory, 2)


@pytest.mark.parametrize("text", ["2/2", "1", "-1/2", "a/b"])
def test_an_invalid_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_share(text)


def test_merged_metrics_have_a_bookie_label_and_one_header() -> None:
    page = '# HELP adds Adds.\n# TYPE adds counter\nadds 7\nadds{ok="a}b"} 1\nnot a sample\n'
    other = '# HELP adds Adds.\n# TYPE adds counter\nadds{bookie="x",ok="1"} 2\n'
    assert merged({"b-0": page, 'b"1': other}) == (
        "# HELP adds Adds.\n# TYPE adds counter\n"
        'adds{bookie="b-0"} 7\nadds{bookie="b-0",ok="a}b"} 1\n'
        'adds{bookie="b\\"1",exported_bookie="x",ok="1"} 2\n'
    )
