"""A bookie with two data directories, for the tests of lost, old and replaced ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.bookie.server import Bookie
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import Code
from quire.metadata.interface import MetadataStore
from tests.support.bookies.bookie import peer_of
from tests.support.bookies.lost_directory import KEY, Place, entry


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Bookie b has ledgers 1 and 2, one in each of two directories."""
    place = Place(tmp_path)

    async def fill(bookie: Bookie) -> None:
        async with peer_of(bookie) as peer:
            for ledger in (1, 2):
                request = frames.add_request(KEY, entry(ledger))
                assert await peer.ask(request) == frames.add_response(0, ledger, 0)

    async def name(store: MetadataStore) -> None:
        for ledger_id in (1, 2):
            segments = (Segment(0, ("b",)),)
            await store.create_ledger(LedgerMetadata(1, 1, 1, segments), ledger_id)

    place.serve(["one", "two"], fill)
    place.in_store(name)
    assert place.codes("one", "two") == {1: Code.OK, 2: Code.OK, 77: Code.NO_LEDGER}
    return place
