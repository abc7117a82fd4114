"""The metadata of a ledger keeps the format that was configured at its creation."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.ledger_metadata_format import decode
from quire.config import ClientConfig
from quire.errors import UnreadableMetadataError, UsageError
from tests.support.bookies.bookie import memory_metadata, running_bookie

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


@pytest.mark.parametrize("version", [2, 3])
async def test_new_ledgers_are_stored_in_the_configured_format(
    tmp_path: Path, version: int
) -> None:
    metadata = memory_metadata()
    async with running_bookie(tmp_path / "bookie", metadata=metadata):
        client = Client(metadata, config=ClientConfig(ledger_metadata_version=version))
        writer = await client.create_ledger(password=b"p", custom={"k": b"v"}, **ONE)
        await writer.append(b"x")
        await writer.close()
        stored = metadata.cluster.ledgers[writer.ledger_id].data
        assert stored.startswith(b"BookieMetadataFormatVersion\t%d\n" % version)
        reader = await client.open_ledger(writer.ledger_id, password=b"p")
        found = await client.ledger_metadata(writer.ledger_id)
        assert (found.format_version, found.closed, found.password) == (version, True, b"p")
        assert reader.last_add_confirmed == 0
        await client.close()


async def test_a_recovery_keeps_the_format(tmp_path: Path) -> None:
    """An old writer's ledger, without digest and password in its metadata."""
    metadata = memory_metadata()
    async with running_bookie(tmp_path / "bookie", metadata=metadata) as bookie:
        old = LedgerMetadata(
            1, 1, 1, (Segment(0, (bookie.bookie_id,)),),
            digest=None, password=None, format_version=1,
        )  # fmt: skip
        await metadata.create_ledger(old, 7)
        client = Client(metadata)
        await client.open_ledger(7, recover=True, unverified_password=True)
        stored = metadata.cluster.ledgers[7].data
        assert stored.startswith(b"BookieMetadataFormatVersion\t1\n")
        assert stored.endswith(b"\n-1\tCLOSED")
        await client.close()


def test_formats_that_new_ledgers_cannot_have_are_refused() -> None:
    for version in (0, 1, 4):
        with pytest.raises(UsageError, match=f"ledger_metadata_version cannot be {version}"):
            ClientConfig(ledger_metadata_version=version)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (b"", "they end within the first line"),
        (b"3", "they end within the first line"),
        (b"123456789", "they end within the first line"),
        (b"1234567890", "the format version is longer than 9 digits"),
        (b"1234567890\n", "the format version is longer than 9 digits"),
    ],
)
def test_damage_in_the_first_line_is_described(version: bytes, says: str) -> None:
    with pytest.raises(UnreadableMetadataError, match=f"damaged: {says}$"):
        decode(b"BookieMetadataFormatVersion\t" + version)
