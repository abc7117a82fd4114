"""The end of the Java processes that PySpark starts, with a script in the place of spark-submit."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quire.cli.common.signals import SignalReceived, raising_signals, stopping_signals
from quire.spark import java
from quire.spark.java import JavaProcesses
from tests.support.waiting import wait_for

pytest.importorskip("pyspark")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt. A shell lets programs in its background ignore it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


WITH_CHILD = "sleep 1000 & echo $! > {child}; wait"
"""As spark-submit, which asks another Java for its options."""


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Makes a `spark-submit` of the given lines of shell, and returns where it writes its pid.

    A test waits for the pid before it sends a signal, so the trap is set before the pid is written.
    """
    pid = tmp_path / "pid"

    def made(lines: str, trap: str = "") -> Path:
        script = tmp_path / "bin" / "spark-submit"
        script.parent.mkdir()
        script.write_text(f"#!/bin/sh\n{trap}\necho $$ > {pid}.new; mv {pid}.new {pid}\n{lines}\n")
        script.chmod(0o755)
        return pid

    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    yield made
    if pid.exists() and alive(int(pid.read_text())):
        os.killpg(int(pid.read_text()), signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def send(number: int, when: Callable[[], object]) -> threading.Thread:
    """Send a signal to this process once a condition holds."""

    def wait() -> None:
        wait_for(when)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def start(processes: JavaProcesses) -> None:
    from pyspark.java_gateway import launch_gateway

    with processes.started():
        launch_gateway()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_start_that_a_signal_ends_leaves_no_process(
    submit: Callable[..., Path], tmp_path: Path, number: int
) -> None:
    """PySpark has removed the directory in which Java would have written its port by then, so that
    Java would never end.
    """
    child = tmp_path / "child"
    pid = submit(WITH_CHILD.format(child=child))
    processes = JavaProcesses()
    sender = send(number, child.exists)
    with pytest.raises(SignalReceived) as caught, raising_signals(processes.terminate, "try"):
        start(processes)
    sender.join()
    assert caught.value.status == 128 + number
    assert str(caught.value).endswith(": try")
    assert not processes
    wait_for(lambda: not alive(int(pid.read_text())))
    wait_for(lambda: not alive(int(child.read_text())))


def test_a_java_process_that_does_not_end_is_killed(
    submit: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "END_LIMIT_S", 0.05)
    pid = submit("while :; do sleep 0.05; done", trap="trap '' TERM")
    sender = send(signal.SIGINT, pid.exists)
    with pytest.raises(KeyboardInterrupt):
        start(JavaProcesses())
    sender.join()
    assert not alive(int(pid.read_text()))


def test_a_second_signal_kills_java_at_once(
    submit: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "END_LIMIT_S", 1_000.0)
    told = tmp_path / "told"
    pid = submit("while :; do sleep 0.05; done", trap=f"trap 'echo > {told}' TERM")
    senders = [send(signal.SIGINT, pid.exists), send(signal.SIGINT, told.exists)]
    with pytest.raises(KeyboardInterrupt):
        start(JavaProcesses())
    for sender in senders:
        sender.join()
    assert not alive(int(pid.read_text()))


def test_a_failed_start_leaves_no_process(submit: Callable[..., Path]) -> None:
    submit("exit 3")
    processes = JavaProcesses()
    with pytest.raises(Exception, match="JAVA_GATEWAY_EXITED"):
        start(processes)
    assert not processes


def test_a_started_process_ends_with_its_standard_input(submit: Callable[..., Path]) -> None:
    """PySpark takes the port from the file of the process."""
    pid = submit("cat > /dev/null")
    processes = JavaProcesses()
    with processes.started():
        from pyspark import java_gateway

        java_gateway.Popen([f"{pid.parent}/bin/spark-submit"], stdin=java_gateway.PIPE)
    wait_for(pid.exists)
    assert processes
    processes.end()
    assert not processes
    assert not alive(int(pid.read_text()))
    assert java_gateway.Popen.__name__ == "Popen"


# -- signals ----------------------------------------------------------------------------------


def test_an_interrupt_while_spark_starts_says_what_to_do_too() -> None:
    """Spark replaces the handler of SIGINT before its session is complete.

    The command said only that it was interrupted.
    """
    ended: list[str] = []

    def start_spark() -> None:
        with raising_signals(lambda: ended.append("java"), "run it again"):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as SparkContext does
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(SignalReceived, match=r"^interrupted: run it again$") as caught:
        start_spark()
    assert (caught.value.status, ended) == (130, ["java"])


def test_an_error_after_a_signal_is_its_consequence() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def fail() -> None:
        with raising_signals(lambda: None):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                raise ConnectionError("Java has ended")

    with pytest.raises(SignalReceived, match=r"^terminated$") as caught:
        fail()
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with raising_signals(lambda: None):
            signal.raise_signal(signal.SIGHUP)
            with stopping_signals(lambda: None) as stop:
                signal.raise_signal(signal.SIGHUP)
                assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, former)


def test_a_background_command_of_a_script_is_stopped_by_sigint() -> None:
    """Its shell made it ignore SIGINT, so that Ctrl-C reaches only the script."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with raising_signals(lambda: None):
            signal.raise_signal(signal.SIGINT)
            with stopping_signals(lambda: None) as stop:
                signal.raise_signal(signal.SIGINT)
                assert stop.is_set()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)


def test_the_first_signal_stops_and_says_so_and_the_second_ends() -> None:
    """A job that completed its work after Ctrl-C, which can take a minute, said nothing."""

    def wait() -> None:
        told = threading.Event()
        with raising_signals(lambda: None), stopping_signals(told.set) as stop:
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_set()
            assert told.wait(60)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(SignalReceived, match=r"^interrupted$"):
        wait()
