"""Questions on a terminal: Ctrl-C, and the answer no."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

import quire.cli
from quire.cli.common.options import asked, run_async
from quire.cli.main import cli
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.metadata import open_metadata
from quire.metadata.bookies.collection import (
    BookieMark,
    CollectionMark,
    CollectionRefusal,
    write_mark,
)

SOURCES = Path(quire.cli.__file__).parent


def test_ctrl_c_ends_a_question_of_a_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was noticed only after the answer, because the event loop does not run meanwhile."""
    answered = []

    def prompt(text: str) -> str:
        signal.raise_signal(signal.SIGINT)
        answered.append(text)
        return "n"

    async def ask() -> bool:
        return asked("Delete it?")

    monkeypatch.setattr("click.termui.visible_prompt_func", prompt)
    with pytest.raises(click.Abort):
        run_async(ask())
    assert not answered


def test_ctrl_c_after_a_question_cancels_the_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    # The timer that ends an interrupted process would end that of the tests.
    timer = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr("quire.cli.common.options.threading.Timer", lambda *given: timer)

    async def ask() -> None:
        try:
            assert asked("Delete it?")
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # it can clean up
            ended.append(True)
            raise

    monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: "y")
    with pytest.raises(KeyboardInterrupt):
        run_async(ask())
    assert ended


def test_every_question_of_a_command_can_be_interrupted() -> None:
    asking = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if re.search(r"\bconfirm\(|\bprompt\(", path.read_text())
    }
    assert asking == {"common/options.py"}


def test_accepting_a_refusal_that_does_not_exist_has_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command said nothing, and its status was that of success."""
    uri = f"sqlite:///{tmp_path}/cluster.db"

    async def refuse() -> None:
        store = await open_metadata(uri, create=True)
        await store.initialise()
        refusal = CollectionRefusal(CollectionMark(7, "t"), since_ms=7)
        await write_mark(store, "b:1", BookieMark(CollectionMark(1, "s"), refusal), None)
        await store.close()

    asyncio.run(refuse())
    monkeypatch.setattr(
        "quire.cli.cluster.gc.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    )
    monkeypatch.setattr("click.confirm", lambda *question, **how: False)
    done = CliRunner().invoke(cli, ["cluster", "gc", "accept", "--metadata", uri])
    assert (done.exit_code, "nothing was changed" in done.stderr) == (1, True)


def test_an_id_that_may_be_mistyped_needs_force(tmp_path: Path) -> None:
    """After a few digits too many, no ledger could ever be created again."""
    uri = f"sqlite:///{tmp_path}/cluster.db"

    def skip(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["cluster", "skip-ids", *words, "--metadata", uri])
        return done.exit_code, done.stderr

    async def next_id() -> int:
        store = await open_metadata(uri)
        ledger_id, _ = await store.create_ledger(LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),)))
        await store.close()
        return ledger_id

    assert CliRunner().invoke(cli, ["cluster", "init", "--metadata", uri]).exit_code == 0
    refused = skip(str(2**63 - 2))
    assert (refused[0], "give --force" in refused[1]) == (2, True)
    assert asyncio.run(next_id()) == 0
    assert skip(str(10**12)) == (0, f"new ledgers get ids above {10**12}\n")
    assert skip(str(10**12 + 5), "--force")[0] == 0
    assert asyncio.run(next_id()) == 10**12 + 6
