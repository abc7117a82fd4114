"""docs/reference/pipelines.md lists the arguments and options of every job, and no others."""

from __future__ import annotations

import re

import click
import pytest

from tests.support.cli import ALL
from tests.support.docs.pages import ROOT, section

PAGE = (ROOT / "docs" / "reference" / "pipelines.md").read_text(encoding="utf-8")
JOBS = {path[1]: command for path, command in ALL.items() if path[0] == "pipeline" and path[1:]}


def options_of(title: str) -> set[str]:
    """Return the options in the first column of the tables of a section."""
    rows = re.findall(r"^\| ([^|]*--[^|]*) \|", section(PAGE, f"## {title}"), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(-[\w-]+)`", row)}


@pytest.mark.parametrize("job", sorted(JOBS))
def test_the_page_lists_every_option(job: str) -> None:
    known = {
        name
        for option in JOBS[job].params
        if isinstance(option, click.Option) and not option.hidden
        for name in (*option.opts, *option.secondary_opts)
    } - {"-h", "--help"}
    listed = options_of(job) | options_of("Options of all jobs")
    assert listed == known


@pytest.mark.parametrize("job", sorted(JOBS))
def test_the_page_lists_every_argument(job: str) -> None:
    known = {
        argument.make_metavar(click.Context(JOBS[job])).strip("[].")
        for argument in JOBS[job].params
        if isinstance(argument, click.Argument)
    }
    assert (
        set(re.findall(r"^\| `([A-Z]+)(?:\.\.\.)?` \|", section(PAGE, f"## {job}"), re.MULTILINE))
        == known
    )
