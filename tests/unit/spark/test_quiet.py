"""The filter of messages of Spark that nobody can act on, tested without Spark."""

from __future__ import annotations

import io
import re
import socket
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from quire.spark.quiet import (
    JAVA_OPTIONS,
    LOG_FILE,
    PROGRESS,
    quiet_driver,
    quiet_settings,
    quiet_worker,
)


def test_java_gets_a_log_configuration() -> None:
    environ = {JAVA_OPTIONS: "-Xss4m"}
    quiet_settings({}, environ)
    assert environ == {JAVA_OPTIONS: f"-Xss4m -Dlog4j2.configurationFile={LOG_FILE.as_uri()}"}
    quiet_settings({}, environ)
    assert environ[JAVA_OPTIONS].count("configurationFile") == 1


@pytest.mark.parametrize(
    "key", ["spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"]
)
def test_a_log_configuration_of_the_program_is_kept(key: str) -> None:
    environ: dict[str, str] = {}
    quiet_settings({key: "-Dlog4j2.configurationFile=mine.xml"}, environ)
    assert environ == {}


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "SPARK_HOME"])
def test_a_log_file_of_the_installation_is_kept(tmp_path: Path, variable: str) -> None:
    directory = tmp_path / "conf" if variable == "SPARK_HOME" else tmp_path
    directory.mkdir(exist_ok=True)
    environ = {variable: str(tmp_path)}
    quiet_settings({}, environ)
    assert environ.pop(JAVA_OPTIONS)
    (directory / "log4j2.properties").touch()
    quiet_settings({}, environ)
    assert environ == {variable: str(tmp_path)}


def test_stage_progress_is_shown_only_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quiet_settings({}, {}) == {PROGRESS: "false"}
    assert quiet_settings({PROGRESS: "true"}, {}) == {}
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert quiet_settings({}, {}) == {}


@pytest.mark.parametrize(
    ("message", "left_out"),
    [
        ("Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 10.0.0.2", True),
        ("Set SPARK_LOCAL_IP if you need to bind to another address", True),
        ("spark.sql.adaptive.enabled is not supported in streaming DataFrames/Datasets", True),
        ("Note that spark.local.dir will be overridden by the value set by the cluster", True),
        ("The data source quire replaced a statically registered data source.", True),
        ("The data source other replaced a statically registered data source.", False),
        ("Service 'sparkDriver' could not bind on port 4040. Attempting port 4041.", False),
    ],
)
def test_known_log_noise_is_suppressed(message: str, left_out: bool) -> None:
    found = re.search(r"regex = (.*)", LOG_FILE.read_text(encoding="utf-8"))
    assert found
    assert bool(re.fullmatch(found[1].replace("\\\\", "\\"), message)) is left_out


def test_a_worker_ends_without_a_traceback_of_a_broken_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = ModuleType("__main__")
    daemon.__dict__.update(manager=None, traceback=traceback)
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    quiet_worker()
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    for error in (BrokenPipeError(), ValueError("told")):
        try:
            raise error
        except (BrokenPipeError, ValueError):
            daemon.__dict__["traceback"].print_exc()
    assert "ValueError: told" in shown.getvalue()
    assert "BrokenPipeError" not in shown.getvalue()
    assert daemon.__dict__["traceback"].format_exc is traceback.format_exc


def test_other_programs_keep_their_tracebacks() -> None:
    quiet_worker()
    assert getattr(sys.modules["__main__"], "traceback", traceback) is traceback


def test_the_driver_prints_no_traceback_when_java_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the first Python task printed PySpark's traceback of 24 lines."""
    accumulators = pytest.importorskip("pyspark.accumulators")
    shown, ended = io.StringIO(), threading.Event()
    server: Any = accumulators._start_update_server("", True, str(tmp_path / "socket"))
    try:
        session: Any = SimpleNamespace(_sc=SimpleNamespace(_accumulatorServer=server))
        quiet_driver(session)
        quiet_driver(session)
        server.shutdown_request = lambda request: (request.close(), ended.set())
        monkeypatch.setattr(sys, "stderr", shown)
        with socket.socket(socket.AF_UNIX) as java:
            java.connect(str(tmp_path / "socket"))
        assert ended.wait(60)
        assert shown.getvalue() == ""
        try:
            raise ValueError("another error")
        except ValueError:
            server.handle_error(None, "")
        assert shown.getvalue().count("ValueError: another error") == 1
    finally:
        server.shutdown()
    quiet_driver(SimpleNamespace())  # type: ignore[arg-type]  # a session of Spark Connect
