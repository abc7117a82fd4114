"""The command `quire` as scripts run it: as a process with outputs and an exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.processes.forked_server import FRESH, ForkedServer
from tests.support.waiting import wait_for

COMMAND = [sys.executable, "-m", "quire"]
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Done:
    status: int
    out: bytes
    err: str

    def ok(self) -> bytes:
        assert self.status == 0, self.err
        assert "Traceback" not in self.err
        return self.out

    def fails(self, status: int, *named: str) -> str:
        """Check the exit status, and return the only line on standard error.

        The line must begin with "error: ", and contain each of these texts.
        """
        assert self.status == status, (self.status, self.err)
        (line,) = self.err.splitlines()
        assert line.startswith("error: "), line
        for name in named:
            assert name in line, line
        return line


class Quire:
    """A runner of commands against one cluster, which is named in their environment."""

    def __init__(self, uri: str = "", directory: Path | None = None) -> None:
        self.uri = uri
        self.environment = {**os.environ, "QUIRE_METADATA": uri}
        self.environment.pop("QUIRE_DEBUG", None)
        self._directory = directory

    def __call__(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Done:
        """Run a command to its end, and return its result. `environment` has further variables."""
        given: dict[str, Any] = {
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
            "env": {**self.environment, **environment}, "cwd": self._directory,
        }  # fmt: skip
        with (
            subprocess.Popen([*COMMAND, *arguments], **given)
            if FRESH
            else ForkedServer(arguments, **given)
        ) as process:
            try:
                out, err = process.communicate(stdin, timeout=TIMEOUT_S)
            except BaseException:
                process.kill()
                raise
        return Done(process.returncode, out, err.decode())

    def initialised(self) -> Quire:
        """Initialise the cluster, which a bookie needs to start, and return this runner."""
        self("cluster", "init").ok()
        return self

    def write(self, data: bytes, *arguments: str) -> str:
        """Write the lines in `data` as entries of a new ledger, and return its id as printed."""
        out = self("ledger", "write", *arguments, stdin=data).ok()
        ledger_id = out.decode().removesuffix("\n")
        assert ledger_id.isdecimal(), out
        assert out == f"{ledger_id}\n".encode()
        return ledger_id

    def start(self, *arguments: str) -> Running:
        return Running([*COMMAND, *arguments], self.environment)


class Running:
    """A running command: `with quire.start("local") as local: ...`. It is killed at the end."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        words = command[len(COMMAND) :]
        if command == [*COMMAND, *words] and not FRESH:
            self.process: subprocess.Popen[bytes] = ForkedServer(words, env=environment, **pipes)
        else:
            self.process = subprocess.Popen(
                command, env=environment, start_new_session=True, **pipes
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """Return the next line on standard output, or '' at the end of the output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def error_line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode().rstrip("\n")

    def type(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(
                f"the command ended before it read everything: {self.why_ended()}"
            ) from None

    def why_ended(self) -> str:
        """Return the command's exit status and its standard error, for messages.

        A command that still runs is killed, because its output was not as expected.
        """
        if self.process.poll() is None:
            self.process.kill()
        assert self.process.stderr is not None
        said = self.process.stderr.read().decode()
        return f"status {self.process.wait()}: {said}"

    def end(self, number: signal.Signals | None = None) -> Done:
        """Wait until the command has ended, and return its result.

        With `number` that signal is sent first. Otherwise the command's input is closed.
        """
        if number is not None:
            self.process.send_signal(number)
            # Its input stays open, so the signal alone must end it.
            self.process.wait(TIMEOUT_S)
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return Done(self.process.returncode, out, err.decode())

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes that descend from process `pid`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found[1:]


def is_running(pid: int) -> bool:
    """Return whether the process runs. A zombie has ended, even if its parent has not noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(map(is_running, pids)), f"end of the processes {pids}")
