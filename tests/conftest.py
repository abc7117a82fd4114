"""Settings for all tests.

Hypothesis has no deadlines, and does not judge how fast examples are drawn, because both depend on
the machine's load.
Nothing is written beside the tests. QUIRE_EXAMPLES is the number of examples of tests that do not
set it themselves. Bookies are forked, which saves the processor time of their imports. The garbage
collector skips what exists before the first test. A failed test reports what its servers logged
last.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.processes.forked_server import fork_bookies
from tests.support.processes.server_logs import server_logs

# A shell starts background jobs without SIGINT, and nohup starts them without SIGHUP. Children
# inherit that, and tests that send these signals would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What is configured on this machine is not for tests.
os.environ["QUIRE_CONFIG"] = ""

# Most sessions of Spark in tests are short: the threads of Java's default collector cost a tenth of
# their processor time. Spark passes these options to its drivers.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC")

EXAMPLES = int(os.environ.get("QUIRE_EXAMPLES", "30"))
settings.register_profile(
    "quire",
    deadline=None,
    database=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quire")
fork_bookies()


def pytest_collection_finish() -> None:
    """Keep all modules and collected tests out of garbage collections.

    They are several hundred thousand objects that live until the end. A full collection takes 0.2 s
    with them, and each simulated run ends with one.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let SIGINT raise KeyboardInterrupt again.

    uvloop leaves its handler behind when a command has ended in the process of the tests, which is
    the end of the process for a user.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last lines of the servers' logs to the report of a failed test.

    A failure that cannot be repeated can then be explained from its report.
    """
    report = yield
    if report.failed and call.when == "call":
        report.sections.extend(server_logs(item))
    return report
