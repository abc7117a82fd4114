"""Processes that may have few file descriptors (`ulimit -n`)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import quire
from quire.errors import RecoveryError
from quire.testing._process import ServerProcess
from tests.support.long import long_after
from tests.support.processes.cli import COMMAND
from tests.support.waiting import wait_for

LIMIT = 60
LOOPS = {
    "uvloop": COMMAND,
    "asyncio": [
        sys.executable,
        "-c",
        "import sys; sys.modules['uvloop'] = None; sys.argv[0] = 'quire'; "
        "from quire.cli.main import main; main()",
    ],
}


def limited(limit: int, *command: str) -> list[str]:
    return ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    subprocess.run([*COMMAND, "cluster", "init", "--metadata", uri], check=True)
    return uri


@pytest.mark.parametrize("limit", long_after(2, [10, 12, 20, 31]))
@pytest.mark.parametrize(
    "words", [("ledger", "list"), ("bookie", "start", "--dir", "b"), ("http",), ("ui",)]
)
def test_a_descriptor_limit_that_is_too_low_is_a_one_line_error(
    uri: str, tmp_path: Path, limit: int, words: tuple[str, ...]
) -> None:
    """It was a RuntimeError about the event loop, or advice about the permissions of a file."""
    done = subprocess.run(
        limited(limit, *COMMAND, *words),
        env={**os.environ, "QUIRE_METADATA": uri},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: the limit of file descriptors of this process (`ulimit -n`) is "
        f"{limit}, and at least 32 are needed. Raise it: `ulimit -n 65536` in the shell before the "
        "start, or LimitNOFILE=65536 in the systemd unit\n"
    )


@pytest.fixture(params=LOOPS)
def bookie(
    request: pytest.FixtureRequest, uri: str, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    command = limited(
        LIMIT, *LOOPS[request.param], "bookie", "start", "--dir", str(tmp_path / "b"),
        "--port", "0", "--http", "127.0.0.1:0", "--set", "segment_bytes=1048576",
        "--set", "min_free_bytes=1",
    )  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "QUIRE_METADATA": uri, "QUIRE_LOG_FORMAT": "json"},
        )
        assert process.stdout is not None
        with process.stdout as out:
            try:
                yield process, out.readline().decode().strip()
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def opened_again(client: quire.Client, ledger_id: int) -> quire.LedgerReader:
    """Recover a ledger as soon as the bookie has a place for another connection."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await client.open_ledger(ledger_id, recover=True)
            except RecoveryError:  # it still closes the connections that waited
                await asyncio.sleep(0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_connections_do_not_take_the_descriptors_of_the_log(
    bookie: tuple[subprocess.Popen[bytes], str], uri: str, tmp_path: Path
) -> None:
    """The bookie became read-only, and without uvloop it wrote thousands of lines a second."""
    process, name = bookie
    log = tmp_path / "log"
    http = wait_for(lambda: re.search(rb'"http://127\.0\.0\.1:(\d+)"', log.read_bytes()))
    ports = [int(name.rpartition(":")[2]), int(http[1])]

    async def main() -> None:
        async with quire.connect(uri) as client:
            quorums = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
            ledger = await client.create_ledger(**quorums)
            await ledger.append(b"first")
            with ExitStack() as sockets:
                for number in range(6 * LIMIT):
                    one = sockets.enter_context(socket.socket())
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", ports[number % 2]))
                began_s, used_s = asyncio.get_running_loop().time(), cpu_s(process.pid)
                for _ in range(60):  # six segments
                    await ledger.append(bytes(100_000))
                    await asyncio.sleep(0.05)
                passed_s = asyncio.get_running_loop().time() - began_s
                assert cpu_s(process.pid) - used_s < passed_s / 2
            ledger.abandon()
            async with quire.connect(uri) as again:
                found = await opened_again(again, ledger.ledger_id)
                assert found.last_add_confirmed == 60

    asyncio.run(main())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) < 40
    assert "Traceback" not in log.read_text()
    [told] = [one["what"] for one in lines if one["event"] == "connections_limited"]
    assert told.startswith(
        f"the limit of file descriptors of this process (`ulimit -n`) is {LIMIT}, so it admits 16 "
        "connections instead of 4096. Raise it: "
    )
    assert not [one for one in lines if one["event"] == "read_only"]


def test_a_program_with_many_open_files_starts_the_processes_of_a_local_cluster(
    tmp_path: Path,
) -> None:
    """`select` refused the number of the descriptor, and the process was left running."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_048:
        pytest.skip("this process may not open so many files")
    program = "import time; print('ready', flush=True); time.sleep(60)"
    process = ServerProcess("a server", [sys.executable, "-c", program], tmp_path / "log")
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
        for _ in range(1_100):
            stack.enter_context(open(os.devnull))
        stack.callback(process.kill)
        process.launch()
        process.wait_ready(time.monotonic() + 60)
        assert process.said == "ready"
