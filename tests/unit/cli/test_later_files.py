"""Files that a person gives to a command, and that a later version wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli.bookie.cookie import _read_given
from quire.cli.shell.ledgers import _read_metadata
from quire.errors import LaterCookieError, LaterMetadataError


def test_a_later_cookie_in_a_file_is_not_called_unusable_for_good(tmp_path: Path) -> None:
    """The advice is to install that version, and not to give another file."""
    file = tmp_path / "cookie"
    file.write_bytes(b'7\nbookieHost: "b"\njournalDir: "/j"\nledgerDirs: "1\t/j"\ntier: 2\n')
    with pytest.raises(LaterCookieError, match=f"{file} cannot be used: ") as raised:
        _read_given(str(file), "")
    assert "generate" not in str(raised.value)


def test_later_metadata_of_a_ledger_in_a_file_is_not_called_unusable_for_good(
    tmp_path: Path,
) -> None:
    file = tmp_path / "metadata"
    file.write_bytes(b"BookieMetadataFormatVersion\t9\n")
    with pytest.raises(LaterMetadataError, match=f"{file} cannot be used: ") as raised:
        _read_metadata(str(file))
    assert "-dumptofile" not in str(raised.value)
