"""A SQLite metadata file that is gone, or cannot be examined, after a commit."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from quire.errors import MetadataUnavailableError
from quire.metadata.sqlite.file import SqliteFile

LIMIT_S = 10.0


async def test_writes_end_if_the_file_cannot_be_examined_after_their_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes once waited for ever, because the error ended the callback that completes them."""
    file, _ = await SqliteFile.open(tmp_path / "cluster.db", "an-id")
    examined, committed = os.stat, False

    def stat(path: Any, *more: Any, **how: Any) -> os.stat_result:
        if committed:
            raise PermissionError(13, "Permission denied")
        return examined(path, *more, **how)

    def work(connection: Any) -> int:
        nonlocal committed
        connection.execute("UPDATE cluster SET next_ledger_id = 1")
        committed = True
        return 1

    monkeypatch.setattr("quire.metadata.sqlite.open_file_check.os.stat", stat)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(MetadataUnavailableError, match="so the outcome is unknown") as failed:
            await file.write(work)
    assert not failed.value.outcome_known
    committed = False
    query = "SELECT next_ledger_id FROM cluster"
    assert await file.read(lambda connection: connection.execute(query).fetchone()) == (1,)
    await file.close()


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
async def test_the_log_about_a_missing_file_agrees_with_the_outcome_of_the_commit(
    committed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, away = tmp_path / "cluster.db", tmp_path / "away.db"
    file, _ = await SqliteFile.open(path, "an-id")

    def work(connection: Any) -> int:
        connection.execute("UPDATE cluster SET next_ledger_id = 1")
        path.rename(away)
        return 1

    if not committed:
        path.rename(away)
    with caplog.at_level(logging.ERROR), pytest.raises(MetadataUnavailableError) as failed:
        await file.write(work)
    assert failed.value.outcome_known is not committed
    [record] = caplog.records
    assert f"{path} was deleted or moved away while the metadata file" in record.getMessage()
    assert ("Nothing was changed" in record.getMessage()) is not committed
    assert ("The outcome of the last change is unknown" in record.getMessage()) is committed
    away.rename(path)
    query = "SELECT next_ledger_id FROM cluster"
    assert await file.read(lambda connection: connection.execute(query).fetchone()) == (committed,)
    await file.close()
