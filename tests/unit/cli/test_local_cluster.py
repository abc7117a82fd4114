"""What `quire local` finds in its directory before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import StartError
from quire.testing.cluster import LocalCluster


def test_no_empty_metadata_file_beside_bookies_that_have_data(tmp_path: Path) -> None:
    """Its bookies would refuse to start on it, and clients be told that nothing was ever there."""
    (tmp_path / "bookie-1" / "current").mkdir(parents=True)
    (tmp_path / "bookie-1" / "current" / "VERSION").write_bytes(b"5\n")
    with pytest.raises(StartError, match=r"metadata.db is missing, but bookie-1 beside it has"):
        LocalCluster(3, tmp_path).start()
    assert not (tmp_path / "metadata.db").exists()
