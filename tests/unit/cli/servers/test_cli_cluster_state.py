"""The directory of a local cluster determines ports and metadata. No process is started."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from quire.errors import StartError, UsageError
from quire.testing import _process, cluster
from quire.testing._process import ServerProcess, free_ports, is_free
from quire.testing.cluster import LocalCluster


def decided(directory: Path, **wanted: object) -> cluster._State:
    """As `start` decides and stores it."""
    local = LocalCluster(directory=directory, **wanted)  # type: ignore[arg-type]
    state = local._decide(cluster._read_state(directory))
    cluster._write_state(directory, state)
    return state


def test_a_cluster_keeps_its_ports(tmp_path: Path) -> None:
    first = decided(tmp_path, bookies=3)
    assert len(set(first.bookie_ports)) == 3
    assert first.metadata == "sqlite"
    assert decided(tmp_path) == first
    assert decided(tmp_path, bookies=2) == first


def test_more_bookies_keep_the_ports_of_the_first(tmp_path: Path) -> None:
    first = decided(tmp_path, bookies=2).bookie_ports
    more = decided(tmp_path, bookies=5).bookie_ports
    assert more[:2] == first
    assert len(set(more)) == 5


def test_a_cluster_has_three_bookies_by_default(tmp_path: Path) -> None:
    assert len(decided(tmp_path).bookie_ports) == 3


def test_the_base_port_numbers_the_ports_of_the_bookies(tmp_path: Path) -> None:
    assert decided(tmp_path, bookies=2, base_port=20_000).bookie_ports == [20_000, 20_001]
    assert decided(tmp_path, bookies=3, base_port=20_000).bookie_ports == [20_000, 20_001, 20_002]
    with pytest.raises(UsageError, match="20000"):
        decided(tmp_path, base_port=21_000)


def test_a_cluster_keeps_its_kind_of_metadata(tmp_path: Path) -> None:
    first = decided(tmp_path, zookeeper=True)
    assert first.metadata == "zookeeper"
    assert first.zookeeper_port not in (0, *first.bookie_ports)
    assert decided(tmp_path) == first
    with pytest.raises(UsageError, match="metadata is in zookeeper"):
        decided(tmp_path, zookeeper=False)


def test_an_unreadable_state_file_is_refused(tmp_path: Path) -> None:
    for text in ("{", "[]", json.dumps({"nonsense": 1})):
        (tmp_path / "cluster.json").write_text(text)
        with pytest.raises(StartError, match=r"cluster\.json"):
            decided(tmp_path)


@pytest.mark.parametrize("bookies", [0, -1, 1001])
def test_invalid_numbers_of_bookies_are_refused(bookies: int) -> None:
    with pytest.raises(UsageError, match=str(bookies)):
        LocalCluster(bookies)


def test_calls_on_a_stopped_local_cluster_are_refused(tmp_path: Path) -> None:
    local = LocalCluster(directory=tmp_path)
    assert local.stop() == []
    with pytest.raises(UsageError):
        local.add_bookie()
    with pytest.raises(UsageError):
        _ = LocalCluster().directory


def test_a_process_that_survives_sigkill_does_not_keep_the_others_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel, for example on a broken disk, cannot be killed."""
    local = LocalCluster(2, tmp_path)
    local._state = decided(tmp_path, bookies=2)
    local.bookies = [local._bookie(1, 1), local._bookie(2, 2)]
    stopped = []

    def stop(process: ServerProcess) -> bool:
        stopped.append(process.name)
        if process.name == local.bookies[1].name:
            raise subprocess.TimeoutExpired("a bookie", 10)
        return True

    monkeypatch.setattr(ServerProcess, "stop", stop)
    monkeypatch.setattr(ServerProcess, "pid", 77)
    names = [bookie.name for bookie in local.bookies]
    assert local.stop() == [f"{names[1]} (pid 77) is still there after SIGKILL"]
    assert stopped == names[::-1]


def test_local_bookies_are_small_by_default(tmp_path: Path) -> None:
    for directory in (None, tmp_path):
        local = LocalCluster(1, directory, bookie_args=["--set", "segment_bytes=0"])
        assert local._arguments == (
            "--set",
            f"segment_bytes={16 << 20}",
            "--set",
            "segment_bytes=0",
        )


def test_the_stopped_bookies_are_named(tmp_path: Path) -> None:
    local = LocalCluster(1, tmp_path)
    local._state = decided(tmp_path, bookies=3)
    local.bookies = [local._bookie(1, local._state.bookie_ports[0])]
    assert local.left_out == [f"127.0.0.1:{port}" for port in local._state.bookie_ports[1:]]
    local.bookies += [local._bookie(2, 2), local._bookie(3, 3)]
    assert local.left_out == []


def test_the_size_of_a_directory_is_that_of_its_blocks(tmp_path: Path) -> None:
    local = LocalCluster(directory=tmp_path)
    before = local.disk_bytes()
    (tmp_path / "below").mkdir()
    with (tmp_path / "below" / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert local.disk_bytes() < before + (1 << 20)
    (tmp_path / "written").write_bytes(bytes(1 << 20))
    assert local.disk_bytes() >= before + (1 << 20)


def test_free_ports_are_free_and_below_the_ephemeral_range() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(_process.PORT_MIN <= port < _process._ephemeral_port_min() for port in ports)
    assert any(is_free(port) for port in ports)


def test_a_port_in_use_is_not_free() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        assert not is_free(busy.getsockname()[1])


def test_free_ports_are_found_without_room_below_the_ephemeral_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_process, "_ephemeral_port_min", lambda: _process.PORT_MIN)
    assert len(set(free_ports(5))) == 5
