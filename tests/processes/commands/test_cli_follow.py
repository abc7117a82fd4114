"""`quire ledger read --follow`, and protocol v3 in `quire ledger write` and `quire cluster
bookies`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.testing.cluster import LocalCluster
from tests.support.processes.cli import Quire

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, directory=tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def quire(cluster: LocalCluster, tmp_path: Path) -> Quire:
    return Quire(cluster.uri, tmp_path)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_follower_sees_each_typed_line(quire: Quire, deferred: bool) -> None:
    """Line by line, the last one too, until the writer ends; with deferred sync only then."""
    options = ["--deferred-sync"] if deferred else []
    with quire.start("ledger", "write", "--explicit-lac", "20", *options) as writer:
        ledger_id = writer.line()
        assert writer.process.stdin is not None
        with quire.start("ledger", "read", ledger_id, "--follow") as reader:
            for number in range(5):
                writer.process.stdin.write(b"line %d\n" % number)
                writer.process.stdin.flush()
                if not deferred:
                    assert reader.line() == f"line {number}"
            writer.process.stdin.close()
            if deferred:
                assert [reader.line() for _ in range(5)] == [f"line {n}" for n in range(5)]
            assert reader.process.wait(60) == 0
        assert writer.process.wait(60) == 0


def test_a_range_of_a_ledger_can_be_followed(quire: Quire) -> None:
    ledger_id = quire.write(b"".join(b"%d\n" % number for number in range(1_000)))
    follow = ("ledger", "read", ledger_id, "--follow")
    assert quire(*follow).ok() == quire("ledger", "read", ledger_id).ok()
    assert quire(*follow, "--first-entry", "5", "--last-entry", "8").ok() == b"5\n6\n7\n8\n"
    assert quire(*follow, "--first-entry", "998").ok() == b"998\n999\n"
    assert quire(*follow, "--first-entry", "1000").ok() == b""
    lines = quire(*follow, "--first-entry", "999", "--json").ok().splitlines()
    assert [json.loads(line)["entry_id"] for line in lines] == [999]
    quire(*follow, "--recover").fails(2, "--recover")


def test_following_ends_with_ctrl_c_or_a_deletion(quire: Quire) -> None:
    with quire.start("ledger", "write") as writer:
        ledger_id = writer.line()
        assert writer.process.stdin is not None
        writer.process.stdin.write(b"one\n")
        writer.process.stdin.flush()
        with quire.start("ledger", "read", ledger_id, "--follow") as reader:
            assert reader.line() == "one"
            reader.process.send_signal(2)
            assert reader.process.wait(60) == 130
        with quire.start("ledger", "read", ledger_id, "--follow") as reader:
            assert reader.line() == "one"
            quire("ledger", "delete", ledger_id).ok()
            assert reader.process.wait(60) == 1
            assert reader.process.stderr is not None
            assert b"was deleted while it was being followed" in reader.process.stderr.read()


def test_the_space_of_bookies_is_printed(quire: Quire, cluster: LocalCluster) -> None:
    for line in quire("cluster", "bookies", "--space").ok().decode().splitlines():
        assert re.search(r" [0-9.]+ [kMGT]?B free of [0-9.]+ [kMGT]?B$", line), line
    cluster.bookies[0].pause()
    try:
        lines = quire("cluster", "bookies", "--space", "--json").ok().splitlines()
    finally:
        cluster.bookies[0].resume()
    found = {one["id"]: one["free_bytes"] for one in map(json.loads, lines)}
    assert found.pop(cluster.bookies[0].id) is None
    assert all(free > 0 for free in found.values())
