"""A bookie whose id is a name moves to another port, and its ledgers move with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.client import Client
from quire.errors import CookieError, UsageError
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.bookie import memory_metadata, running_bookie


async def test_a_bookie_with_a_name_moves_to_another_port_with_its_ledgers(tmp_path: Path) -> None:
    metadata = memory_metadata()
    ports = set()
    async with (
        running_bookie(tmp_path / "a", metadata=metadata, bookie_id="alpha_1.rack-2"),
        Client(MemoryStore(metadata.cluster)) as client,
    ):
        ports.add((await client.bookies()).writable["alpha_1.rack-2"].port)
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"here")
        await writer.close()
        assert writer.metadata.last_segment.ensemble == ("alpha_1.rack-2",)
    async with (
        running_bookie(tmp_path / "a", metadata=metadata, bookie_id="alpha_1.rack-2"),
        Client(MemoryStore(metadata.cluster)) as client,
    ):
        ports.add((await client.bookies()).writable["alpha_1.rack-2"].port)
        reader = await client.open_ledger(writer.ledger_id)
        assert (await reader.read_last()).payload == b"here"
    assert len(ports) == 2


async def test_a_start_refuses_the_directory_of_another_bookie_id(tmp_path: Path) -> None:
    metadata = memory_metadata()
    async with running_bookie(tmp_path / "a", metadata=metadata, bookie_id="alpha"):
        pass
    with pytest.raises(CookieError, match=r"belongs to bookie alpha, not beta"):
        async with running_bookie(tmp_path / "a", metadata=metadata, bookie_id="beta"):
            pass


@pytest.mark.parametrize("bookie_id", ["a/b", "readonly", "a b", "\u00e4"])
async def test_invalid_bookie_ids_are_refused_before_anything_is_written(
    tmp_path: Path, bookie_id: str
) -> None:
    with pytest.raises(UsageError, match="cannot be a bookie id"):
        async with running_bookie(tmp_path / "a", bookie_id=bookie_id):
            pass
    assert not list((tmp_path / "a").glob("**/VERSION"))
