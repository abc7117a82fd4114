"""The contract of the commands that run servers: `bookie`, `local`, `zookeeper`, `cluster`."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from quire.errors import StartError
from quire.testing.cluster import LocalCluster, free_ports
from tests.support.long import long_after
from tests.support.processes.cli import (
    TIMEOUT_S,
    Quire,
    Running,
    descendants,
    is_running,
    wait_until_gone,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

LINES = b"".join(b"%d\n" % number for number in range(1_000))


def sqlite(directory: Path) -> str:
    return f"sqlite:///{directory / 'metadata.db'}"


def snapshot(directory: Path) -> dict[str, bytes]:
    """Return everything below the directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def start_error(running: Running, *named: str) -> None:
    """Return the error of a server that exits by itself with status 1 and serves nothing."""
    done = running.end()
    assert done.status == 1, done.err
    assert done.out == b""
    *events, error = done.err.splitlines()
    assert error.startswith("error: "), done.err
    for event in events:
        json.loads(event)
    for name in named:
        assert name in error


# -- bookie -----------------------------------------------------------------------------------


@pytest.mark.parametrize("made", long_after(1, [False, True]), ids=["missing", "empty"])
def test_a_bookie_formats_its_directory_and_restarts(tmp_path: Path, made: bool) -> None:
    """It formats its directory, exits with status 0 on SIGTERM, and starts again."""
    quire = Quire(sqlite(tmp_path)).initialised()
    directory = tmp_path / "data"
    if made:
        directory.mkdir()
    (port,) = free_ports(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        with quire.start("bookie", "--dir", str(directory), "--port", str(port)) as bookie:
            assert bookie.line() == f"127.0.0.1:{port}"
            listed = quire("cluster", "bookies").ok().decode()
            assert listed == f"127.0.0.1:{port} writable 127.0.0.1:{port}\n"
            if number == signal.SIGTERM:
                one = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
                ledger_id = quire.write(LINES, *one)
            assert quire("ledger", "read", ledger_id).ok() == LINES
            done = bookie.end(number)
            assert (done.status, done.out) == (0, b"")
            for event in done.err.splitlines():
                json.loads(event)
        assert quire("cluster", "bookies").ok() == b""


def test_the_advertised_host_is_the_id(tmp_path: Path) -> None:
    quire = Quire(sqlite(tmp_path)).initialised()
    arguments = ("--dir", str(tmp_path / "data"), "--port", "0", "--advertise", "localhost")
    with quire.start("bookie", *arguments, "--bind", "127.0.0.1") as bookie:
        bookie_id = bookie.line()
        assert re.fullmatch(r"localhost:\d+", bookie_id)
        found = json.loads(quire("cluster", "bookies", "--json").ok())
        assert (found["id"], found["host"]) == (bookie_id, "localhost")
        assert bookie.end(signal.SIGTERM).status == 0


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    quire = Quire(sqlite(tmp_path)).initialised()
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        with quire.start("bookie", "--dir", str(tmp_path / "data"), "--port", port) as bookie:
            start_error(bookie, port, "in use", "--port")
    assert quire("cluster", "bookies").ok() == b""


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """The directory is refused and left unchanged."""
    directory, (port,) = tmp_path / "data", free_ports(1)
    arguments = ("bookie", "--dir", str(directory), "--port", str(port))
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    with Quire(sqlite(tmp_path / "one")).initialised().start(*arguments) as bookie:
        assert bookie.line()
        assert bookie.end(signal.SIGTERM).status == 0
    before = snapshot(directory)
    with Quire(sqlite(tmp_path / "other")).initialised().start(*arguments) as bookie:
        start_error(bookie, str(directory), "another cluster")
    assert snapshot(directory) == before
    with Quire(sqlite(tmp_path / "one")).start(*arguments) as bookie:
        assert bookie.line() == f"127.0.0.1:{port}"


def test_a_directory_of_another_bookie_is_refused(tmp_path: Path) -> None:
    quire = Quire(sqlite(tmp_path)).initialised()
    one, other = map(str, free_ports(2))
    arguments = ("bookie", "--dir", str(tmp_path / "data"), "--port")
    with quire.start(*arguments, one) as bookie:
        assert bookie.line()
        with quire.start(*arguments, other) as second:
            start_error(second, str(tmp_path / "data"), "in use")
        assert bookie.end(signal.SIGTERM).status == 0
    with quire.start(*arguments, other, "--bookie-id", f"127.0.0.1:{other}") as bookie:
        start_error(bookie, str(tmp_path / "data"), f"127.0.0.1:{one}")
    with quire.start(*arguments, other) as bookie:
        assert bookie.line() == f"127.0.0.1:{one}"
        listed = quire("cluster", "bookies").ok().decode()
        assert listed == f"127.0.0.1:{one} writable 127.0.0.1:{other}\n"
        done = bookie.end(signal.SIGTERM)
    (kept,) = [json.loads(line) for line in done.err.splitlines() if '"id_kept"' in line]
    assert (kept["bookie"], kept["address"]) == (f"127.0.0.1:{one}", f"127.0.0.1:{other}")


def test_a_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "documents"
    directory.mkdir()
    (directory / "letter.txt").write_text("Dear reader")
    quire = Quire(sqlite(tmp_path)).initialised()
    with quire.start("bookie", "--dir", str(directory), "--port", "0") as bookie:
        start_error(bookie, str(directory), "empty")
    assert snapshot(directory)["letter.txt"] == b"Dear reader"


def test_an_unreachable_metadata_uri_is_reported(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'missing' / 'metadata.db'}"
    with Quire(uri).start("bookie", "--dir", str(tmp_path / "data"), "--port", "0") as bookie:
        start_error(bookie, str(tmp_path / "missing"))
    assert not (tmp_path / "missing").exists()
    (tmp_path / "text.db").write_text("this is no database, but long enough for one" * 100)
    uri = f"sqlite:///{tmp_path / 'text.db'}"
    Quire(uri)("ledger", "list").fails(1, "text.db")


def test_a_missing_metadata_file_is_not_created_by_a_bookie(tmp_path: Path) -> None:
    """No empty file is created, because clients would be told that nothing was ever stored.

    The error says how to continue, and offers nothing destructive.
    """
    quire = Quire(sqlite(tmp_path)).initialised()
    start = ("bookie", "--dir", str(tmp_path / "data"), "--port", "0", "--bookie-id", "b")
    one = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    with quire.start(*start) as bookie:
        assert bookie.line() == "b"
        ledger_id = quire.write(LINES, *one)
        assert bookie.end(signal.SIGTERM).status == 0
    before = snapshot(tmp_path / "data")
    (tmp_path / "metadata.db").rename(tmp_path / "elsewhere.db")
    for command in (start, ("bookie", "init", "--dir", str(tmp_path / "new"))):
        said = quire(*command).fails(
            1, "metadata.db does not exist", "restore the file or a backup"
        )
        for word in ("format", "erase", "delete", " rm "):
            assert word not in said
        assert not (tmp_path / "metadata.db").exists()
    assert snapshot(tmp_path / "data") == before
    # An empty file, as a touch or a full disk leaves it, is no cluster either.
    (tmp_path / "metadata.db").touch()
    quire(*start).fails(1, "metadata.db is empty")
    assert (tmp_path / "metadata.db").stat().st_size == 0
    (tmp_path / "elsewhere.db").replace(tmp_path / "metadata.db")
    with quire.start(*start) as bookie:
        assert bookie.line() == "b"
        assert quire("ledger", "read", ledger_id).ok() == LINES


def test_a_cluster_whose_metadata_file_is_deleted_refuses_writes(tmp_path: Path) -> None:
    """Nothing is written into the nameless file, so no ledger disappears at the next start."""
    quire = Quire(sqlite(tmp_path)).initialised()
    file = tmp_path / "metadata.db"
    start = ("bookie", "--dir", str(tmp_path / "data"), "--port", "0", "--bookie-id", "b")
    one = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    with quire.start(*start) as bookie:
        assert bookie.line() == "b"
        ledger_id = quire.write(LINES, *one)
        with sqlite3.connect(file) as source, sqlite3.connect(tmp_path / "backup.db") as target:
            source.backup(target)
        kept = tmp_path / "kept.db"
        kept.hardlink_to(file)
        file.unlink()
        while "was deleted or moved away" not in (said := bookie.error_line()):
            assert said
        quire("ledger", "list").fails(1, "metadata.db does not exist")
        (tmp_path / "backup.db").rename(file)
        while "was replaced by another file" not in (said := bookie.error_line()):
            assert said
        kept.replace(file)
        while "is back" not in (said := bookie.error_line()):
            assert said
        newer = quire.write(LINES, *one)
        assert bookie.end(signal.SIGTERM).status == 0
    with quire.start(*start) as bookie:
        assert bookie.line() == "b"
        for found in (ledger_id, newer):
            assert quire("ledger", "read", found).ok() == LINES


def test_a_zookeeper_that_does_not_answer_is_reported() -> None:
    (port,) = free_ports(1)
    done = Quire(f"zk+hierarchical://127.0.0.1:{port}/ledgers")("ledger", "list")
    done.fails(1, f"127.0.0.1:{port}")


def test_cluster_init_creates_a_cluster_once(tmp_path: Path) -> None:
    quire = Quire(sqlite(tmp_path))
    quire("ledger", "list").fails(1, "quire cluster init")
    out = quire("cluster", "init").ok().decode()
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n", out)
    quire("cluster", "init").fails(1, str(tmp_path))
    assert quire("ledger", "list").ok() == b""
    assert quire("cluster", "bookies").err == "no bookies are registered\n"


def test_a_writer_whose_only_bookie_dies_reports_the_error(tmp_path: Path) -> None:
    with LocalCluster(bookies=1, directory=tmp_path) as cluster:
        quire = Quire(cluster.uri)
        one = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
        with quire.start("ledger", "write", *one) as writer:
            ledger_id = writer.line()
            cluster.bookies[0].kill()
            writer.type(b"one\n")
            done = writer.end()
        done.fails(1, cluster.bookies[0].id, f"quire ledger recover {ledger_id}")
        cluster.bookies[0].start()
        quire("ledger", "recover", ledger_id).ok()
        assert quire("ledger", "read", ledger_id).ok() == b""


# -- local ------------------------------------------------------------------------------------


def running_local(*arguments: str) -> Running:
    return Quire().start("local", "--no-ui", *arguments)


@pytest.mark.parametrize(
    "number", long_after(1, [signal.SIGINT, signal.SIGTERM]), ids=["INT", "TERM"]
)
def test_a_local_cluster_keeps_its_data(tmp_path: Path, number: signal.Signals) -> None:
    arguments = ("--bookies", "3", "--dir", str(tmp_path / "cluster"))
    with running_local(*arguments) as local:
        uri = local.line()
        assert uri == f"sqlite:///{tmp_path}/cluster/metadata.db"
        quire = Quire(uri)
        bookies = quire("cluster", "bookies").ok()
        assert bookies.count(b" writable ") == 3
        ledger_id = quire.write(LINES)
        below = descendants(local.pid)
        assert len(below) == 3
        done = local.end(number)
        assert (done.status, done.out) == (0, b"")
        assert f"export QUIRE_METADATA='{uri}'" in done.err
        assert done.err.splitlines()[-1] == "stopped (3 processes)"
        assert not any(map(is_running, below))
    with running_local("--dir", str(tmp_path / "cluster")) as local:
        assert local.line() == uri
        assert quire("cluster", "bookies").ok() == bookies
        assert quire("ledger", "read", ledger_id).ok() == LINES
        assert local.end(number).status == 0


def test_a_killed_local_cluster_leaves_no_process(tmp_path: Path) -> None:
    """Not even a stopped bookie remains. After another start the data is there."""
    arguments = ("--bookies", "3", "--dir", str(tmp_path))
    with running_local(*arguments) as local:
        quire = Quire(local.line())
        ledger_id = quire.write(LINES)
        below = descendants(local.pid)
        assert len(below) == 3
        subprocess.run(["kill", "-STOP", str(below[0])], check=True)
        local.process.kill()
        local.process.wait(TIMEOUT_S)
        wait_until_gone(below)
    with running_local(*arguments) as local:
        assert local.line() == quire.uri
        assert quire("ledger", "read", ledger_id).ok() == LINES


def log_bytes(directory: Path) -> int:
    """Return the size of all segments. Bookies remove some while they are counted."""
    total = 0
    for path in directory.rglob("*.seg"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


@pytest.mark.long
def test_a_local_cluster_is_small(tmp_path: Path) -> None:
    """It once took 0.5 GB for each bookie, and more with the ledgers that were deleted."""
    with running_local("--bookies", "3", "--dir", str(tmp_path), "--set", "gc_interval_s=1") as one:
        quire = Quire(one.line())
        ledger_id = quire.write((b"x" * 999 + b"\n") * 100_000)
        quire("ledger", "delete", ledger_id, "--yes").ok()
        size = wait_for(lambda: log_bytes(tmp_path), right=lambda size: size <= 200 << 20)
        assert one.process.poll() is None
        assert size >= 3 * (16 << 20)
        assert "Disk space in use now: " in one.end(signal.SIGINT).err


@pytest.mark.long
def test_fewer_bookies_than_the_directory_has_give_a_warning(tmp_path: Path) -> None:
    with running_local("--bookies", "3", "--dir", str(tmp_path)) as local:
        local.line()
        assert "warning" not in local.end(signal.SIGINT).err
    ports = json.loads((tmp_path / "cluster.json").read_text())["bookie_ports"]
    with running_local("--bookies", "1", "--dir", str(tmp_path)) as local:
        quire = Quire(local.line())
        assert quire("cluster", "bookies").ok().count(b" writable ") == 1
        said = local.end(signal.SIGINT).err
    assert f"warning: {tmp_path} has 3 bookies, and 2 of them do not run: " in said
    assert f"127.0.0.1:{ports[1]}, 127.0.0.1:{ports[2]}. Ledgers with replicas there" in said
    assert "quire ledger write --ensemble 1 --write-quorum 1 --ack-quorum 1;" in said


def test_an_unknown_setting_of_a_local_cluster_is_refused() -> None:
    with running_local("--set", "segmentbytes=1") as local:
        done = local.end()
    assert done.status == 2
    assert "did you mean segment_bytes?" in done.err


def test_a_signal_during_the_start_stops_the_cluster(tmp_path: Path) -> None:
    with running_local("--bookies", "3", "--dir", str(tmp_path / "cluster")) as local:
        while not (below := descendants(local.pid)):
            assert local.process.poll() is None
        done = local.end(signal.SIGINT)
        assert (done.status, done.err) == (0, "stopped before the cluster was ready\n")
        assert not any(map(is_running, below))


def test_a_temporary_cluster_is_removed() -> None:
    with running_local("--bookies", "1") as local:
        directory = Path(local.line().removeprefix("sqlite:///")).parent
        assert directory.is_dir()
        done = local.end(signal.SIGINT)
    assert done.status == 0
    assert f"{directory} (temporary" in done.err
    assert not directory.exists()


def test_the_death_of_a_bookie_is_reported(tmp_path: Path) -> None:
    with running_local("--bookies", "3", "--dir", str(tmp_path)) as local:
        quire = Quire(local.line())
        victim = descendants(local.pid)[1]
        port = json.loads((tmp_path / "cluster.json").read_text())["bookie_ports"][1]
        subprocess.run(["kill", "-KILL", str(victim)], check=True)
        while "ended" not in (line := local.error_line()):
            assert line
        assert line.startswith(f"bookie 127.0.0.1:{port} ended by signal 9")
        ledger_id = quire.write(LINES, "--ensemble", "2", "--write-quorum", "2")
        assert quire("ledger", "read", ledger_id).ok() == LINES
        assert local.end(signal.SIGTERM).status == 0


def test_a_decommissioned_bookie_exits_normally(tmp_path: Path) -> None:
    """A decommissioned bookie exits normally. It once exited with status 1."""
    with running_local("--bookies", "2", "--dir", str(tmp_path)) as local:
        quire = Quire(local.line())
        port = json.loads((tmp_path / "cluster.json").read_text())["bookie_ports"][1]
        quire("bookie", "decommission", f"127.0.0.1:{port}").ok()
        while "ended" not in (line := local.error_line()):
            assert line
        assert line.startswith(f"bookie 127.0.0.1:{port} ended cleanly: it was stopped or")
        assert local.end(signal.SIGTERM).status == 0


def test_two_local_clusters_in_one_directory_are_refused(tmp_path: Path) -> None:
    with running_local("--bookies", "1", "--dir", str(tmp_path)) as local:
        assert local.line()
        done = Quire()("local", "--dir", str(tmp_path))
        done.fails(1, str(tmp_path), "in use")
        assert local.end(signal.SIGINT).status == 0


def test_a_base_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        done = Quire()("local", "--bookies", "1", "--dir", str(tmp_path), "--base-port", str(port))
    done.fails(1, f"bookie 127.0.0.1:{port}", "in use")


# -- ZooKeeper --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a `quire zookeeper`, without any cluster in it."""
    directory, (port,) = tmp_path_factory.mktemp("zookeeper"), free_ports(1)
    with Quire().start("zookeeper", "--dir", str(directory), "--port", str(port)) as server:
        assert server.line() == f"zk+hierarchical://127.0.0.1:{port}/ledgers"
        below = descendants(server.pid)
        yield f"127.0.0.1:{port}"
        done = server.end(signal.SIGTERM)
        assert (done.status, done.out, done.err) == (0, b"", "")
        assert not any(map(is_running, below))


@pytest.mark.zookeeper
def test_an_uninitialised_zookeeper_is_reported(zookeeper: str, tmp_path: Path) -> None:
    quire = Quire(f"zk+hierarchical://{zookeeper}/unknown")
    for command in (("ledger", "list"), ("ledger", "write"), ("cluster", "bookies")):
        quire(*command).fails(1, "quire cluster init")
    with quire.start("bookie", "--dir", str(tmp_path / "data"), "--port", "0") as bookie:
        start_error(bookie, "quire cluster init")


@pytest.mark.zookeeper
def test_a_cluster_is_created_in_zookeeper(zookeeper: str, tmp_path: Path) -> None:
    quire = Quire(f"zk+hierarchical://{zookeeper}/made/here")
    assert re.fullmatch(r"[0-9a-f-]{36}\n", quire("cluster", "init").ok().decode())
    quire("cluster", "init").fails(1)
    with quire.start("bookie", "--dir", str(tmp_path / "data"), "--port", "0") as bookie:
        assert bookie.line()
        one = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
        ledger_id = quire.write(LINES, *one)
        assert quire("ledger", "read", ledger_id).ok() == LINES
        assert quire("ledger", "list").ok().decode() == f"{ledger_id}\n"
        assert bookie.end(signal.SIGTERM).status == 0
    assert quire("cluster", "bookies").ok() == b""


@pytest.mark.zookeeper
def test_a_local_cluster_can_use_zookeeper(tmp_path: Path) -> None:
    arguments = ("--bookies", "2", "--dir", str(tmp_path), "--zookeeper")
    shape = ("--ensemble", "2", "--write-quorum", "2")
    with running_local(*arguments) as local:
        quire = Quire(local.line())
        assert quire.uri.startswith("zk+hierarchical://127.0.0.1:")
        ledger_id = quire.write(LINES, *shape)
        below = descendants(local.pid)
        done = local.end(signal.SIGINT)
        assert done.status == 0, done.err
        wait_until_gone(below)
    with running_local(*arguments) as local:
        assert local.line() == quire.uri
        assert quire("ledger", "read", ledger_id).ok() == LINES
        below = descendants(local.pid)
        assert len(below) >= 4  # two bookies, `quire zookeeper` and its Java
        local.process.kill()
        local.process.wait(TIMEOUT_S)
        wait_until_gone(below)


@pytest.mark.zookeeper
def test_a_zookeeper_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        done = Quire()("zookeeper", "--dir", str(tmp_path), "--port", port)
    done.fails(1, port)


# -- for users' own tests ---------------------------------------------------------------------

USERS_TEST = """
import pytest


def test_blocking(quire_cluster, quire_blocking_client):
    assert len(quire_cluster.bookies) == 3
    with quire_blocking_client.create_ledger() as ledger:
        ledger.append(b"one")
    with quire_blocking_client.open_ledger(ledger.ledger_id) as reader:
        assert [entry.payload for entry in reader.read()] == [b"one"]


async def test_asyncio(quire_client):
    async with await quire_client.create_ledger() as ledger:
        await ledger.append(b"one")
    async with await quire_client.open_ledger(ledger.ledger_id) as reader:
        assert [entry.payload async for entry in reader.read()] == [b"one"]
"""


def test_the_pytest_fixtures_work_in_a_separate_project(tmp_path: Path) -> None:
    """A separate project uses them with warnings as errors. Nothing keeps running."""
    (tmp_path / "test_theirs.py").write_text(USERS_TEST)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        "filterwarnings = error\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_plugin_imports_little_until_it_is_used() -> None:
    program = (
        "import sys\n"
        "import quire.testing.pytest_plugin\n"
        "heavy = {'quire.testing.cluster', 'kazoo', 'sqlite3', 'rich', 'click', 'pyspark'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_a_bookie_that_could_not_be_added_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once stayed in `bookies`, so that the next call added another one."""
    with LocalCluster(1, tmp_path) as cluster, socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        monkeypatch.setattr(cluster, "_new_ports", lambda count, state: [port])
        with pytest.raises(StartError):
            cluster.add_bookie()
        assert len(cluster.bookies) == 1
        busy.close()
        added = cluster.add_bookie()
        assert added.port == port
        assert cluster.bookies[1:] == [added]
        assert added.alive
