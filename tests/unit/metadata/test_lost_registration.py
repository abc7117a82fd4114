"""The error that a bookie gets if another process has taken its registration."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import KeyExistsError
from quire.metadata import open_metadata
from quire.metadata.interface import BookieAddress
from quire.metadata.sqlite.store import SqliteStore


async def test_a_change_of_a_lost_registration_fails_without_naming_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_metadata(f"sqlite:///{tmp_path}/cluster.db", create=True)
    assert isinstance(store, SqliteStore)
    try:
        await store.initialise()
        registration = await store.register_bookie(BookieAddress("b", "h", 3181))
        # Another process has taken the row after this one's lease had expired.
        monkeypatch.setattr(store._session, "take", lambda connection, presence: False)
        with pytest.raises(KeyExistsError, match=r"bookie b is registered by another") as it:
            await registration.set_readonly(True)
        assert "ms" not in str(it.value)
        assert it.value.remedy.startswith("Stop the other process")
    finally:
        await store.close()
