"""With every metadata store, a bookie notices that its directory went back in time."""

from __future__ import annotations

import shutil
from pathlib import Path

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.wire import v2 as frames
from quire.metadata.bookies.directories import LogMark, forget_bookie, read_directories
from quire.metadata.interface import MetadataStore
from tests.support.bookies.bookie import peer_of, running_bookie
from tests.support.metadata.backends import Backend

KEY = master_key(b"")


async def went_back(directory: Path, store: MetadataStore, entries: int = 0) -> bool:
    """Start the bookie, store this number of entries of ledger 1, and stop it. Return whether its
    directory went back in time."""
    async with running_bookie(directory, metadata=store, bookie_id="b") as bookie:
        async with peer_of(bookie) as peer:
            for entry_id in range(entries):
                data = EntryCodec(1, DigestType.CRC32C, b"").pack(entry_id, -1, 5, b"entry")
                request = frames.add_request(KEY, data)
                assert await peer.ask(request) == frames.add_response(0, 1, entry_id)
        assert bookie.rollbacks is not None
        assert bool(bookie.rollbacks.found) == bookie.store.negatives_unknown
        return bookie.store.negatives_unknown


async def marks(store: MetadataStore) -> list[LogMark]:
    found = await read_directories(store, "b")
    return [] if found is None else list(found.value.marks.values())


async def test_an_older_copy_or_an_empty_file_is_detected_as_a_rollback(
    backend: Backend, tmp_path: Path
) -> None:
    store = await backend.store()
    metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("b",)),))
    await store.create_ledger(metadata, 1)
    directory, backup = tmp_path / "data", tmp_path / "backup"
    assert await went_back(directory, store, 0)  # a ledger names it: it is not new
    await store.delete_cookie("b")
    await store.delete_ledger(1)
    await forget_bookie(store, "b")
    assert await read_directories(store, "b") is None
    shutil.rmtree(directory)
    assert not await went_back(directory, store, 3)
    (first,) = await marks(store)
    assert (first.incarnation, first.lost) == (1, "")
    shutil.copytree(directory, backup)
    await store.create_ledger(metadata, 1)
    assert not await went_back(directory, store)
    (second,) = await marks(store)
    assert second.incarnation == 2
    assert (second.newest_file, second.end_group) > (first.newest_file, first.end_group)
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    assert await went_back(directory, store)
    await store.delete_cookie("b")
    shutil.rmtree(directory)
    assert await went_back(directory, store)
