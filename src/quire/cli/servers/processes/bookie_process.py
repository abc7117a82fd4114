"""One bookie of a service as its supervisor sees it: a process, its answers and its messages."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from quire.cli.servers.processes.division import Share
from quire.cli.servers.processes.reports import METRICS, STATUS

ANSWER_TIMEOUT_S = 5.0
"""Seconds that a bookie has to answer its supervisor. One that takes longer does not answer."""
ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""The largest answer of a bookie, in bytes. It contains the metrics of the bookie."""
MESSAGE_BYTES_MAX = 64 * 1024
"""The bytes of an incomplete line of a bookie's standard error that the supervisor keeps before it
passes them on."""
_ERROR = "error: "

State = Literal["starting", "serving", "pausing", "ended"]
"""The state of a bookie: its process starts, it serves, its process ended and is to be started
again, or it ended and is not started again."""


@dataclass(frozen=True, slots=True)
class Status:
    """The latest answer of a bookie."""

    id: str = ""
    serving: bool = False
    writable: bool = False
    loaded_percent: int = 0
    http: str | None = None


class BookieProcess:
    """One bookie of a service. Its process may end and be started again."""

    def __init__(
        self, share: Share, command: Sequence[str], write: Callable[[str], object]
    ) -> None:
        """Describe a bookie, without starting it.

        Args:
            share: The part of the configuration that this bookie has.
            command: The command line of its process.
            write: Writes a line of its standard error to that of the service.
        """
        self.share = share
        self.state: State = "starting"
        self.status = Status()
        self.answers = True
        """Whether the bookie answers. It counts as answering until its first answer."""
        self.restarts = 0
        """The number of times that the process was started again."""
        self.exit_status: int | None = None
        """The exit status of the last process, or its negative signal number. None: none ended."""
        self.error = ""
        """The error with which the last process ended, or ''."""
        self.restart_asked = False
        """Whether the process is to end and to be started again at once."""
        self.has_served = False
        """Whether the bookie has served since the service was started."""
        self.wake = asyncio.Event()
        """An event that ends the pause before the next start."""
        self._command = list(command)
        self._write = write
        self._process: asyncio.subprocess.Process | None = None
        self._unsent: signal.Signals | None = None
        """The last signal that came while no process ran. One that is being started gets it."""
        self._lock = asyncio.Lock()
        self._owed = 0
        self._heard = False

    @property
    def name(self) -> str:
        """The id of the bookie, or the one that a new bookie would get until the bookie answers."""
        return self.status.id or self.share.name

    @property
    def pid(self) -> int | None:
        """The process id, or None if no process runs."""
        return self._process.pid if self._process is not None else None

    @property
    def complaint(self) -> str:
        """A few words about what is wrong with the bookie now, or '' if it serves."""
        if self.state == "serving":
            return "" if self.answers else "does not answer"
        if self.state == "starting":
            return f"starts, and has loaded {self.status.loaded_percent} % of its log"
        again = "is started again soon" if self.state == "pausing" else "is not started again"
        return f"ended {how_it_ended(self.exit_status)} and {again}"

    def begin_again(self) -> None:
        """Count another start of the process, which follows at once."""
        self.restarts += 1
        self.state = "starting"

    async def run(self) -> int:
        """Start the process, pass its messages on, and return its exit status when it has ended.

        The status is the negative number of the signal if one has ended the process. Raises OSError
        if the process cannot be started. If the call is cancelled, the process is killed.
        """
        self._begin()
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=ANSWER_BYTES_MAX,
            start_new_session=True,  # Ctrl-C on the terminal is for the supervisor only.
        )
        if self._unsent is not None:
            self.signal(self._unsent)
        try:
            assert process.stderr is not None
            await self._pass_on(process.stderr)
            self.exit_status = await process.wait()
        except asyncio.CancelledError:
            self.signal(signal.SIGKILL)
            await process.wait()
            raise
        finally:
            self._process = None
        return self.exit_status

    def _begin(self) -> None:
        self.state, self.status, self.error = "starting", Status(), ""
        self.answers, self._heard, self._owed = True, False, 0
        self._unsent = None

    async def _pass_on(self, stream: asyncio.StreamReader) -> None:
        """Pass each line of standard error on, except the error with which the process ends."""
        rest = b""
        while piece := await stream.read(MESSAGE_BYTES_MAX):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._message(line.decode(errors="replace"))
            if len(rest) > MESSAGE_BYTES_MAX:
                self._message(rest.decode(errors="replace"))
                rest = b""
        if rest:
            self._message(rest.decode(errors="replace"))

    def _message(self, line: str) -> None:
        """Pass a line on, or keep it if it is the error of a command (`groups.fail`)."""
        if line.startswith(_ERROR):
            self.error = line.removeprefix(_ERROR)
            return
        if '"event": "message"' in line and '"level": "error"' in line:
            with suppress(ValueError, KeyError):
                self.error = str(json.loads(line)["message"])
                return
        self._write(line)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs, or as soon as it has started."""
        if self._process is None:
            self._unsent = number
        elif self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    # -- questions ----------------------------------------------------------------------------

    async def look(self) -> bool:
        """Ask for the status of the bookie, and return whether it has answered in time."""
        return await self._ask(STATUS) is not None

    async def metrics(self) -> str | None:
        """Return the bookie's metrics in Prometheus' text format.

        Returns None if the bookie does not answer in time, or has no HTTP server.
        """
        answer = await self._ask(METRICS)
        return None if answer is None else answer.get("metrics")

    async def _ask(self, question: bytes) -> dict[str, Any] | None:
        process = self._process
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S), self._lock:
                if process is None or process is not self._process:
                    return None
                assert process.stdin is not None
                assert process.stdout is not None
                while self._owed:  # the answers to questions that nobody waits for any more
                    await self._line(process.stdout)
                process.stdin.write(question)
                self._owed += 1
                answer: dict[str, Any] = json.loads(await self._line(process.stdout))
        except TimeoutError:
            if process is self._process and self._heard:
                self.answers = False
            return None
        except (OSError, ValueError):
            return None  # the process ends
        self.answers = self._heard = True
        self._take(answer)
        return answer

    async def _line(self, stream: asyncio.StreamReader) -> bytes:
        line = await stream.readline()
        if not line:
            raise BrokenPipeError("the process ends")
        self._owed -= 1
        return line

    def _take(self, answer: dict[str, Any]) -> None:
        self.status = Status(**{one: answer[one] for one in Status.__slots__})
        if self.state in ("starting", "serving"):
            self.state = "serving" if self.status.serving else "starting"
        self.has_served |= self.status.serving


def how_it_ended(status: int | None) -> str:
    """Return how a process ended, in words for messages.

    `status` is its exit status, or the negative number of the signal that ended it, or None if it
    is unknown.
    """
    if status is None:
        return "in an unknown way"
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def write_line(line: str) -> None:
    """Write a line of a bookie to the standard error of this process."""
    with suppress(OSError):  # Standard error is closed, and the bookies go on.
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
