"""The Java processes that PySpark starts for this program, and their end.

PySpark starts Java through `spark-submit`, and waits for a file in which Java tells its port. An
exception in that time, such as the one of Ctrl-C, removes the directory of the file. Java then
fails to write the file, but the thread of its server keeps it alive forever, and PySpark has kept
no handle to it. The processes are therefore recorded here when they are started.

Once it has started, Java watches its standard input, a pipe from this program, and ends with the
program, however that ends. Its Python workers end with it in the same way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

END_LIMIT_S = 10.0
"""Seconds that Java may take to stop its context and remove temporary files before it is killed."""


class JavaProcesses:
    """The Java processes that were started in the blocks of `started`."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def __bool__(self) -> bool:
        """Return whether a recorded process has not been ended yet."""
        return bool(self._processes)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Record the processes that PySpark starts in this block. If it raises, end them."""
        from pyspark import java_gateway

        processes = self._processes

        class Recorded(subprocess.Popen[bytes]):
            def __init__(self, *arguments: Any, **more: Any) -> None:
                # A signal must not separate the start of the process from its record. The group of
                # its own has the shell script, too, and the Java that the script asks for options.
                with _later_signals():
                    super().__init__(*arguments, **{**more, "process_group": 0})
                    processes.append(self)

        former = java_gateway.Popen
        java_gateway.Popen = Recorded
        try:
            yield
        except BaseException:
            self.terminate()
            self.end()
            raise
        finally:
            java_gateway.Popen = former

    def terminate(self) -> None:
        """Ask the processes to end now. A signal handler may call this: it waits for nothing."""
        for process in self._processes:
            _send(process, signal.SIGTERM)

    def end(self) -> None:
        """End the processes: close their standard input, wait, and kill them after a time.

        PySpark forgets them, so that the next session starts another one. If an exception comes
        while this waits, such as that of a second Ctrl-C, the processes are killed at once.
        """
        if not self._processes:
            return
        try:
            for process in self._processes:
                if process.stdin is not None:
                    process.stdin.close()
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_LIMIT_S)
        finally:
            for process in self._processes:
                _send(process, signal.SIGKILL)
                process.wait()
            self._processes.clear()
            _forget_gateway()


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _forget_gateway() -> None:
    """Let PySpark forget its connection to a process that has ended."""
    from pyspark import SparkContext

    with SparkContext._lock:
        active: Any = SparkContext._active_spark_context
        if active is not None:
            active._jsc = None  # `SparkSession.getOrCreate` sees by this that it has to start one.
        SparkContext._active_spark_context = None
        SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def _later_signals() -> Iterator[None]:
    """Hold the signals that end programs back until the block is left."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs signal handlers in the main thread only.
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    with ExitStack() as former:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(before := signal.getsignal(number)):
                signal.signal(number, hold)
                former.callback(signal.signal, number, before)
        yield
    for one in held:
        signal.raise_signal(one)
