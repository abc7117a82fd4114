"""Commands that start without imports: forks of the process that runs them (`command_server`).

A bookie spends most of the processor time of its start, a third of a second, on imports, and the
tests start hundreds of bookies. A forked one runs the same command, is a child of the tests with a
process id of its own, and is killed, stopped and waited for as any other. With
QUIRE_FRESH_COMMANDS=1 each server gets an interpreter of its own.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import marshal
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from quire.testing import _process
from tests.support.processes.command_server import LENGTH_BYTES

COMMAND_SERVER = Path(__file__).with_name("command_server.py")
CAN_FORK = hasattr(os, "pidfd_open")
FRESH = bool(os.environ.get("QUIRE_FRESH_COMMANDS")) or not CAN_FORK
"""Whether each command gets an interpreter of its own, as for users.

Otherwise commands are forked from a process that has imported Quire (`command_server`).
"""
TIMEOUT_S = 60.0
PR_SET_CHILD_SUBREAPER = 36
one_at_a_time = threading.Lock()


@cache
def forked_command() -> list[str]:
    """Return the words that replace `quire` in a script's command that runs to its end."""
    directory = tempfile.mkdtemp(prefix="quire-commands-")
    path = str(Path(directory) / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.command_server", "serve", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=COMMAND_SERVER.parents[3],
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"

    def end() -> None:
        server.communicate(timeout=TIMEOUT_S)  # The end of its input.
        shutil.rmtree(directory)

    atexit.register(end)
    return [sys.executable, "-I", "-S", str(COMMAND_SERVER), path]


@cache
def forked_quire() -> Path:
    """Return a directory for PATH whose program `quire` runs a command to its end by a fork."""
    *words, path = forked_command()
    program = Path(path).with_name("bin") / "quire"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join([*words, path])} "$@"\n')
    program.chmod(0o755)
    return program.parent


class ForkedServer(subprocess.Popen[bytes]):
    """A running `quire ARGUMENT...` that was forked: a child of this process, in its own session.

    `with_parent` is the signal that the process receives when this process ends, or 0 for none.
    """

    def __init__(self, arguments: Sequence[str], with_parent: int = 0, **pipes: Any) -> None:
        self._with_parent = with_parent
        super().__init__(list(arguments), **pipes)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        directory, environment, pipes = given[4], given[5], given[9:15]
        stdin, _, _, stdout, _, stderr = pipes
        request = {
            "arguments": args,
            "environment": dict(os.environ if environment is None else environment),
            "directory": str(directory or os.getcwd()),
            "parent": os.getpid(),
            "signal": int(self._with_parent),
        }
        streams = [
            number if given == -1 else given for number, given in enumerate((stdin, stdout, stderr))
        ]
        try:
            self.pid = ask(marshal.dumps(request), streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def ask(text: bytes, streams: list[int]) -> int:
    """Let the server of commands fork a process for this request, and return its process id.

    `text` is the request, marshalled, and `streams` are the descriptors of its standard streams.
    """
    path = forked_command()[-1]
    with adopting(), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        connection.sendmsg([len(text).to_bytes(LENGTH_BYTES, "big")], sent)
        connection.sendall(text)
        said = b""
        while more := connection.recv(16):  # Until the server is a child of this process.
            said += more
        return int(said)


@contextmanager
def adopting() -> Iterator[None]:
    """Adopt descendants in the block: they become children of this process when their parents end.

    Outside of the block, the system adopts processes whose parents end, and removes them when they
    end.
    """
    with one_at_a_time:
        subreaper(True)
        try:
            yield
        finally:
            subreaper(False)


def subreaper(on: bool) -> None:
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) was refused")


def fork_bookies() -> None:
    """Let every `LocalCluster` of this process fork its bookies from now on."""
    if FRESH:
        return
    start = _process._popen
    prefix = _process.quire_command()

    def popen(command: list[str], errors: int) -> subprocess.Popen[bytes]:
        number, *words = command
        if words[: len(prefix)] != prefix:
            return start(command, errors)
        return ForkedServer(
            words[len(prefix) :],
            int(number),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_process._environment(),
        )

    _process._popen = popen
