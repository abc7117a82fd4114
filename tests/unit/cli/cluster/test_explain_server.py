"""`quire explain --server` also reports what only a server that keeps running can know."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from quire.cli import explain
from quire.cli.main import cli
from quire.errors import MetadataUnavailableError
from quire.http.views.cluster_view import ClusterState
from quire.http.views.problems.metadata_store import metadata_slow
from quire.http.views.problems.problem import Problem

NOTE = Problem("note", "known", "")
VIEW = ClusterState("zk://zk-1:2181/ledgers", "id", [], {}, None, [NOTE], None)


def answering(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> None:
    async def fetch(url: str) -> str:
        assert url == "http://here:8080/api/v1/quire/overview"
        return json.dumps(answer)

    async def fetcher(stack: AsyncExitStack) -> Any:
        return fetch

    monkeypatch.setattr(explain, "_fetch", fetcher)


async def test_explain_reports_repeated_outages_of_the_metadata_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outages = [{"since_ms": n * 60_000, "until_ms": n * 60_000 + 12_000} for n in range(1, 5)]
    answering(monkeypatch, {"metadata_outages": outages})
    found = await explain._with_outages(VIEW, "http://here:8080/", 300_000)
    unsteady, note = found.problems
    assert unsteady.what.startswith("The metadata store did not answer 4 times in the last hour")
    assert note == NOTE
    assert explain._status(found) == 3, "the problem affects --exit-code"
    answering(monkeypatch, {"metadata_outages": []})
    assert (await explain._with_outages(VIEW, "http://here:8080", 300_000)).problems == [NOTE]


async def test_repeated_outages_replace_one_slow_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    outages = [{"since_ms": n * 60_000, "until_ms": n * 60_000 + 12_000} for n in range(1, 5)]
    answering(monkeypatch, {"metadata_outages": outages})
    view = replace(VIEW, problems=[*metadata_slow(VIEW.metadata, 6.0), NOTE])
    unsteady, note = (await explain._with_outages(view, "http://here:8080", 300_000)).problems
    assert "did not answer 4 times" in unsteady.what
    assert note == NOTE
    answering(monkeypatch, {"metadata_outages": []})
    assert await explain._with_outages(view, "http://here:8080", 300_000) == view


def test_without_findings_and_server_the_answer_says_what_was_not_examined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that is paused again and again gave "No problems were found" in every call."""
    monkeypatch.setattr(explain, "pasteable", str)
    uri = "zk+hierarchical://zk-1:2181/ledgers"
    recovery = {"enabled": True, "auditor": "healer"}
    view = replace(VIEW, metadata=uri, problems=[], autorecovery=recovery)
    at = explain._cluster_lines(view).index("✓ No problems were found")
    assert explain._cluster_lines(view)[at + 1] == explain.NOT_LOOKED_AT
    assert "quire explain --server http://HOST:8080" in explain.NOT_LOOKED_AT
    assert explain.NOT_LOOKED_AT in explain._cluster_lines(replace(view, problems=[NOTE]))
    for other, asked in (
        (view, True),
        (replace(view, problems=[Problem("warn", "known", "")]), False),
        (replace(view, metadata="sqlite:////data/meta.db"), False),
    ):
        assert explain.NOT_LOOKED_AT not in explain._cluster_lines(other, asked=asked)


async def test_explain_accepts_a_server_that_reports_no_outages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier version has no such key. What is known without it is still printed."""
    answering(monkeypatch, {})
    assert await explain._with_outages(VIEW, "http://here:8080", 0) == VIEW
    assert "did not say how often the metadata store was away" in capsys.readouterr().err


def test_the_error_about_the_store_names_the_option_that_asks_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the help named it, which nobody reads while the metadata store is away."""

    def lost(*_: object) -> None:
        raise MetadataUnavailableError("the store is away", remedy="Start it")

    async def last_known(server: str, as_json: bool) -> None: ...

    monkeypatch.setattr(explain, "explaining", lost)
    monkeypatch.setattr(explain, "_show_last_known", last_known)
    words = ["explain", "--metadata", "zk://zk-1:2181/ledgers"]
    said = CliRunner().invoke(cli, words)
    assert said.exit_code == 1
    assert said.stderr.rstrip().endswith(
        "quire explain --metadata zk://zk-1:2181/ledgers --server http://HOST:8080"
    )
    known = CliRunner().invoke(cli, [*words, "--server", "http://here:8080", "--exit-code"])
    assert (known.exit_code, "--server" in known.stderr) == (5, False)


def test_the_header_counts_the_bookies_that_do_not_answer() -> None:
    """The header once said "4 writable" although one of them did not answer."""
    states = [("a", "writable", True), ("b", "writable", False), ("c", "gone", None)]
    bookies = [
        {
            "id": name,
            "state": state,
            "answers": answers,
            "severity": "warn",
            "free_bytes": None,
            "rates": None,
        }
        for name, state, answers in states
    ]
    view = replace(VIEW, bookies=bookies, autorecovery={"enabled": True, "auditor": "healer"})
    assert explain._cluster_lines(view, asked=True)[1] == (
        "bookies: 2 writable, 0 read-only, 1 gone; 1 registered bookie does not answer; "
        "autorecovery is on, auditor: healer"
    )
    assert view.as_json()["silent_bookies"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        {"problems": [], "bookies": None, "old_since_ms": None},
        {"problems": [], "bookies": {"writable": 1}, "old_since_ms": "yesterday"},
        {"problems": [{"what": "x"}], "bookies": {}, "old_since_ms": None},
        {"problems": 7, "bookies": {}, "old_since_ms": None},
    ],
)
async def test_a_malformed_answer_is_not_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: dict[str, Any]
) -> None:
    """The error about the metadata store, which is what matters, was not printed."""
    answering(monkeypatch, answer)
    await explain._show_last_known("http://here:8080", as_json=False)
    printed = capsys.readouterr()
    assert "the last known state cannot be read from http://here:8080" in printed.err
    assert not printed.out


async def test_an_unknown_severity_and_control_characters_are_shown_safely(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain, "pasteable", str)
    problem = {"severity": "fatal", "what": "a\x1b[2Jb", "next": "c\u202ed"}
    answering(
        monkeypatch, {"problems": [problem], "bookies": {"writable": 1}, "old_since_ms": None}
    )
    await explain._show_last_known("http://here:8080", as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "fatal: a\\x1b[2Jb" in lines
    assert "    do: c\\u202ed" in lines


@pytest.mark.parametrize("url", ["http://[::1", "ftp://me:hunter2@here", "http://me:hunter2/@"])
def test_an_invalid_server_url_is_refused(url: str) -> None:
    said = CliRunner().invoke(cli, ["explain", "--metadata", "sqlite:////x", "--server", url])
    assert said.exit_code == 2
    assert "is not the URL of an HTTP server" in said.stderr
    assert "hunter2" not in said.stderr
