"""Server processes of a local cluster: they are started, watched and ended by their own pid.

A child never outlives this process (see `_launch`). Linux ties a child to the thread that started
it, so one thread that lives as long as the process starts all children.
"""

from __future__ import annotations

import os
import queue
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from quire.errors import StartError, UsageError

STOP_TIMEOUT_S = 20.0
"""Seconds that a process may take to end after SIGTERM before it gets SIGKILL."""
KILL_TIMEOUT_S = 10.0
STOPPING_POLL_S = 0.1
SAID_BYTES_MAX = 4096
"""The largest number of bytes that are read of a server's ready line, or of the end of its log."""

LOOPBACK = "127.0.0.1"
PORT_MIN = 15_000
EPHEMERAL_PORT_MIN = 32_768
"""The lowest port that Linux assigns to outgoing connections by default.

It is used if /proc does not say what the setting of this machine is.
"""
PORT_ATTEMPTS_MAX = 1_000

_LAUNCH = Path(__file__).with_name("_launch.py")


def with_parent(number: int = signal.SIGKILL) -> list[str]:
    """Return the words to put before a command so that it ends with the thread that starts it.

    The command then receives signal `number` when that thread ends, however this process ends.
    On systems other than Linux, the words have no effect.
    """
    return [*_launcher(), str(int(number))]


def _launcher() -> list[str]:
    return [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid())]


class StoppedError(StartError):
    """The error of a start that was called off by its `stopping` event. Nothing failed."""


# -- the thread that starts children ----------------------------------------------------------


class _Starter:
    """A thread that starts all children. It ends with the process, and the children with it."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[list[str], int, Future[subprocess.Popen[bytes]]]]
        self._work = queue.SimpleQueue()
        threading.Thread(target=self._run, name="quire-starter", daemon=True).start()

    def start(self, command: list[str], errors: int) -> subprocess.Popen[bytes]:
        started: Future[subprocess.Popen[bytes]] = Future()
        self._work.put((command, errors, started))
        try:
            return started.result()
        except KeyboardInterrupt:
            # The caller never receives the process, so nobody else would end it.
            process = started.result()
            process.kill()
            process.communicate()
            raise

    def _run(self) -> None:
        while True:
            command, errors, started = self._work.get()
            try:
                started.set_result(_popen(command, errors))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                started.set_exception(error)


def _popen(command: list[str], errors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*_launcher(), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=_environment(),
        start_new_session=True,  # Ctrl-C on the terminal is for the parent only
    )


def _environment() -> dict[str, str]:
    """Return the environment without the Quire configuration of this machine.

    A cluster for trials and tests is configured by its commands only. Its log follows the
    environment.
    """
    tables = ("QUIRE_BOOKIE_", "QUIRE_CLIENT_", "QUIRE_AUTORECOVERY_", "QUIRE_HTTP_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(tables)}
    return {**kept, "QUIRE_CONFIG": ""}


_starter: _Starter | None = None
_starter_lock = threading.Lock()


def _forget_starter() -> None:
    global _starter, _starter_lock
    _starter = None
    _starter_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_starter)


def _start(command: list[str], errors: int) -> subprocess.Popen[bytes]:
    global _starter
    with _starter_lock:
        if _starter is None:
            _starter = _Starter()
        return _starter.start(command, errors)


def quire_command(*arguments: str) -> list[str]:
    """Return the words of `quire ...` with this interpreter.

    The option -P keeps files in the working directory from shadowing modules.
    """
    return [sys.executable, "-P", "-m", "quire", *arguments]


# -- one server -------------------------------------------------------------------------------


class ServerProcess:
    """A server in a process of its own.

    The server prints one line on standard output once it serves. Its standard error goes to a log
    file.

    Attributes:
        name: The name of the server, for messages.
        log_path: The file that receives the standard error of the process.
        said: The line with which the server reported that it serves.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Describe a server, without starting it.

        Args:
            name: The name of the server, for messages.
            command: The command and its arguments.
            log_path: The file that receives the standard error of the process.
            death_signal: The signal that the process receives when this process ends. SIGKILL also
                ends a paused process; SIGTERM lets a process end children of its own.
        """
        self.name = name
        self.log_path = log_path
        self.said = ""
        self._command = [str(int(death_signal)), *command]
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._paused = False
        self._ready = False
        self._asked = False
        """Whether the process was already asked to stop.

        A second SIGTERM might reach the process when its signal handlers are gone, and kill it.
        """

    # -- what is known ------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id of the running process, or of the last one that ran.

        Raises:
            UsageError: The process was never started.
        """
        if self._process is None:
            raise UsageError(f"the process {self.name} was never started, so it has no process id")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit status, or the negative signal number. None while the process has not ended."""
        return None if self._process is None else self._process.poll()

    def how_it_ended(self) -> str:
        """Return how the process ended, in words for messages.

        Returns:
            For example "with status 1", "by signal 9" or "not yet".
        """
        status = self.returncode
        if status is None:
            return "not yet"
        return f"by signal {-status}" if status < 0 else f"with status {status}"

    def rss_bytes(self) -> int:
        """Return the resident memory of the process now, in bytes. Linux only.

        Returns:
            The number of bytes. It is 0 if the process has ended and nothing has noticed that yet.

        Raises:
            UsageError: The process was never started.
            OSError: The process has ended, and a call or property of this object, such as `alive`,
                has noticed that.
        """
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Return the user and system time of the process since its start, in seconds. Linux only.

        Returns:
            The number of seconds.

        Raises:
            UsageError: The process was never started.
            OSError: The process has ended, and a call or property of this object, such as `alive`,
                has noticed that.
        """
        # The name before the fields may hold spaces and parentheses.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def last_words(self) -> str:
        """Return the last line of the process's log that is not blank, for messages.

        Returns:
            The line without a leading "error: ", or "nothing" if there is no such line or no log.
        """
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - SAID_BYTES_MAX))
                lines = log.read().decode(errors="replace").split("\n")
        except FileNotFoundError:
            lines = []
        said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return said.removeprefix("error: ")

    # -- starting -----------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the process and return at once. `wait_ready` waits until it serves.

        Raises:
            UsageError: The process is already running.
            OSError: The log file cannot be written, or the system cannot start the process.
        """
        if self.alive:
            raise UsageError(
                f"the process {self.name} is already running (pid {self.pid})",
                remedy="Stop it before you start it again",
            )
        self._close_output()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = _start(self._command, log.fileno())
        self._owner = os.getpid()
        self._paused = self._ready = self._asked = False

    def wait_ready(self, deadline: float, stopping: threading.Event | None = None) -> None:
        """Wait until the server serves.

        Args:
            deadline: The time of `time.monotonic` at which to give up.
            stopping: An event that ends the wait when it is set.

        Raises:
            StartError: The process ended, or it does not serve by the deadline. It no longer runs.
            StoppedError: `stopping` was set. The process still runs.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        # `select.select` takes no descriptor above 1023.
        output = select.poll()
        output.register(process.stdout, select.POLLIN)
        line = b""
        while not self._ready:
            if stopping is not None and stopping.is_set():
                raise StoppedError(
                    f"the start of the cluster was called off before {self.name} was ready"
                )
            if not output.poll(STOPPING_POLL_S * 1000):
                if time.monotonic() < deadline:
                    continue
                self.kill()
                raise StartError(
                    f"{self.name} was not ready in time. Last log line: {self.last_words()}"
                    f"{self._full_disk()}",
                    remedy=f"See its log, {self.log_path}",
                )
            piece = os.read(process.stdout.fileno(), SAID_BYTES_MAX)
            line += piece
            if not piece:
                self.kill()
                raise StartError(
                    f"{self.name} ended {self.how_it_ended()} before it was ready. Last log line: "
                    f"{self.last_words()}{self._full_disk()}",
                    remedy=f"See its log, {self.log_path}",
                )
            self._ready = b"\n" in line
        self.said = line.decode(errors="replace").partition("\n")[0]

    def _full_disk(self) -> str:
        """Return that the disk of the log is full, because the log says nothing then, or ""."""
        from quire.metadata.sqlite.disk_space import disk_of

        disk = disk_of(Path(self.log_path))
        return f". The disk of its log is full ({disk})" if disk is not None and disk.full else ""

    # -- ending -------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process with SIGKILL, and return when it is gone.

        The server cannot flush or report anything. Killing a process that does not run does
        nothing.

        Raises:
            subprocess.TimeoutExpired: The process is still there after 10 seconds.
        """
        process = self._own_process()
        if process is not None:
            if process.poll() is None:
                process.kill()
                process.wait(KILL_TIMEOUT_S)
            self._close_output()

    def terminate(self) -> None:
        """Ask the process to stop with one SIGTERM, and return at once.

        A second call sends no second signal. A paused process is resumed, so that it can stop.
        `stop` does the same and waits for the end of the process.
        """
        process = self._own_process()
        if process is None or process.poll() is not None:
            return
        if not self._asked:
            self._asked = True
            process.terminate()
        if self._paused:
            self.resume()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stop the process with SIGTERM and wait until it is gone.

        Args:
            timeout_s: Seconds to wait before the process is killed with SIGKILL.

        Returns:
            Whether the process ended with status 0 in time. True if it did not run.

        Raises:
            subprocess.TimeoutExpired: The process is still there 10 seconds after SIGKILL.
        """
        process = self._own_process()
        if process is None or process.poll() is not None:
            self._close_output()
            return True
        self.terminate()
        try:
            return process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.kill()

    def pause(self) -> None:
        """Pause the process with SIGSTOP: it keeps its connections but answers nothing.

        Raises:
            UsageError: The process does not run.
        """
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Resume a paused process with SIGCONT.

        Raises:
            UsageError: The process does not run.
        """
        self._signal(signal.SIGCONT)
        self._paused = False

    def _signal(self, number: int) -> None:
        process = self._own_process()
        if process is None or process.poll() is not None:
            raise UsageError(f"the process {self.name} is not running, so no signal was sent to it")
        process.send_signal(number)

    def _own_process(self) -> subprocess.Popen[bytes] | None:
        """Return the process, or None in a fork of this program, which must not end it."""
        return self._process if self._owner == os.getpid() else None

    def _close_output(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()


# -- ports ------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Return `count` ports of 127.0.0.1 on which nobody listens now.

    If possible none of them is a port that the system assigns to outgoing connections, so a server
    that is down for a while finds its port free when it returns. Raises StartError if there are too
    few.
    """
    top = _ephemeral_port_min()
    if top - PORT_MIN < count:
        return _ports_of_the_system(count)
    chance = random.SystemRandom()
    found: list[int] = []
    for _ in range(PORT_ATTEMPTS_MAX):
        if len(found) == count:
            return found
        port = chance.randrange(PORT_MIN, top)
        if port not in found and is_free(port):
            found.append(port)
    raise StartError(
        f"no {count} free ports were found between {PORT_MIN} and {top} on {LOOPBACK}",
        remedy="Stop processes that listen there",
    )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _ephemeral_port_min() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_PORT_MIN


def _ports_of_the_system(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
