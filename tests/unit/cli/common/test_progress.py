"""Progress on a terminal: the rate and the time left."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from quire.cli.common.progress import ProgressBar, StepBar


class Terminal(io.StringIO):
    """A stream whose `isatty` is set by the test."""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Terminal]:
    """Return a function that makes standard error a terminal, or not. pytest replaces the stream
    between a fixture and its test."""

    def make(is_one: bool) -> Terminal:
        made = Terminal()
        monkeypatch.setattr(made, "isatty", lambda: is_one)
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return make


def task(bar: Any) -> Any:
    (only,) = bar._bar.tasks
    return only


def began_earlier(bar: Any, seconds: float) -> None:
    one = bar._bar._tasks[bar._task]
    one.start_time -= seconds


def test_the_progress_rate_is_in_bytes_if_they_are_known(
    terminal: Callable[[bool], Terminal],
) -> None:
    terminal(True)
    with ProgressBar("read", total=100) as bar:
        began_earlier(bar, 1_000)
        bar.advance(10, 2_000_000_000)
        assert task(bar).fields["rate"] == "2.0 MB/s"
        assert task(bar).completed == 10
    with ProgressBar("check", total=5_000, counted="segments") as bar:
        began_earlier(bar, 1_000)
        bar.advance(3_000, 0)
        assert task(bar).fields["rate"] == "3/s"


def test_each_step_of_a_job_has_its_own_rate(terminal: Callable[[bool], Terminal]) -> None:
    terminal(True)
    with StepBar() as bar:
        bar("reading", 0, 10_000)
        began_earlier(bar, 1_000)
        bar("reading", 5_000, 10_000)
        assert task(bar).fields["counted"] == "5,000 of 10,000, 5/s"
        bar("writing", 0, None)
        assert (task(bar).description, task(bar).total) == ("writing", None)
        assert task(bar).elapsed < 1_000


def test_no_progress_bar_is_drawn_without_a_terminal(terminal: Callable[[bool], Terminal]) -> None:
    said = terminal(False)
    with ProgressBar("read", total=100) as bar, StepBar() as steps:
        bar.advance(10, 2_000)
        steps("reading", 1, 2)
        assert steps.far().step == "reading: 1 of 2"
    assert said.getvalue() == ""
