"""Forked commands behave like commands in their own interpreter."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.cli import COMMAND, TIMEOUT_S, Quire, wait_until_gone
from tests.support.processes.command_server import receive
from tests.support.processes.forked_server import (
    CAN_FORK,
    COMMAND_SERVER,
    FRESH,
    ForkedServer,
    forked_command,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN_FORK, reason="needs pidfd_open, which Linux has"),
]


def test_the_command_server_returns_output_and_exit_status(tmp_path: Path) -> None:
    """Options, the environment, the working directory, all three streams and the status."""
    (tmp_path / "quire.toml").write_text("[client]\nread_timeout_s = 7\n[nonsense]\n")
    environment = {**Quire(f"sqlite:///{tmp_path}/none.db").environment, "COLUMNS": "60"}
    statuses = set()
    for arguments in (
        ["--version"],
        ["ledger", "--help"],
        ["ledger", "list"],
        ["ledger", "read", "x"],
        ["config", "check", "quire.toml"],
    ):
        fresh, forked = (
            subprocess.run(
                [*how, *arguments],
                input=b"",
                capture_output=True,
                cwd=tmp_path,
                env=environment,
                timeout=TIMEOUT_S,
                check=False,
            )
            for how in (COMMAND, forked_command())
        )
        statuses.add(fresh.returncode)
        assert forked.returncode == fresh.returncode, arguments
        assert forked.stdout == fresh.stdout.replace(b"python -m quire", b"quire"), arguments
        assert forked.stderr == fresh.stderr.replace(b"python -m quire", b"quire"), arguments
    assert statuses == {0, 1, 2}


@pytest.mark.parametrize(
    "sent", [b"", b"\0" * 3, (1_000).to_bytes(8, "big"), (2).to_bytes(8, "big") + b"{"]
)
def test_a_truncated_request_ends_the_connection(sent: bytes) -> None:
    """A request of a killed process was once read forever, at the cost of a core."""
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        here.sendall(sent)
        here.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            receive(there)


def test_a_forked_command_ends_with_its_process(tmp_path: Path) -> None:
    bookie = ("bookie", "--port", "0", "--dir", str(tmp_path / "bookie"))
    uri = f"sqlite:///{tmp_path / 'metadata.db'}"
    Quire(uri).initialised()
    metadata = ("--metadata", uri)
    with subprocess.Popen(
        [*forked_command(), *bookie, *metadata], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"127.0.0.1:")
        process.kill()
        # The command holds its other end until it exits.
        assert process.communicate(timeout=TIMEOUT_S)[0] == b""


def test_a_forked_server_is_a_child_of_the_tests(tmp_path: Path) -> None:
    """It has a session and a status of its own, and starts with what it was given."""
    quire = Quire(f"sqlite:///{tmp_path}/metadata.db").initialised()
    for number, status in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with quire.start("bookie", "--dir", str(tmp_path / "data"), "--port", "0") as bookie:
            assert isinstance(bookie.process, ForkedServer) is not FRESH
            assert bookie.line().startswith("127.0.0.1:")
            fields = Path(f"/proc/{bookie.pid}/stat").read_text().rpartition(")")[2].split()
            assert [int(field) for field in fields[1:4]] == [os.getpid(), bookie.pid, bookie.pid]
            assert bookie.end(number).status == status


DIES = """
import os
from quire.testing.cluster import LocalCluster
from tests.support.processes.forked_server import fork_bookies

fork_bookies()
cluster = LocalCluster(bookies=1)
cluster.start()
print(cluster.bookies[0].pid, cluster.bookies[0].directory.parent, flush=True)
os._exit(1)
"""


def test_a_forked_bookie_ends_with_the_tests() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES],
        stdout=subprocess.PIPE,
        cwd=COMMAND_SERVER.parents[3],
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    pid, directory = done.stdout.decode().split()
    wait_until_gone([int(pid)])
    shutil.rmtree(directory)
