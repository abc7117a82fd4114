"""A device cannot read one block of a segment, for each block in turn.

The bookie starts nevertheless, and never denies an acknowledged entry or a fence.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.codec.log.state_records import BLOCK_BYTES
from quire.errors import DamagedError, StorageError
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.recovery.scan import UNREADABLE_BLOCKS_MAX
from quire.storage.segment.segment import segment_name
from tests.support.long import long_after
from tests.support.storage.storage import EAGER, SMALL, StoreOnDisk, compact, disk_of, mixed, opened

FENCED = 90


def written(stop: str) -> StoreOnDisk:
    """Sealed and compacted segments, and one that is open."""
    box = opened(EAGER)
    mixed(box, segments=3)
    box.drop([1, 2])
    box.idle()
    compact(box)
    for entry_id in range(6):
        box.append([(FENCED, entry_id, bytes([entry_id]) * 1500)])
        box.pump()
    box.fence(FENCED)
    box.idle()
    box.append([(91, 0, b"last" * 500)])
    box.pump()
    if stop == "stopped":
        box.close()
    else:
        disk_of(box).kill()
    return box


def looked_at(box: StoreOnDisk) -> tuple[int, int]:
    """Return the readable entries, and the entries whose existence is unknown."""
    right = unknown = 0
    for (ledger_id, entry_id), entry in box.acknowledged.items():
        try:
            assert box.read(ledger_id, entry_id) == [entry]
            right += 1
        except DamagedError:
            unknown += 1
        except (NoEntry, NoLedger):
            assert box.store.negatives_unknown
            unknown += 1
    fenced = FENCED in box.store.ledgers and box.store.ledgers[FENCED].fenced
    assert fenced or box.store.negatives_unknown
    return right, unknown


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("stop", long_after(1, ["stopped", "killed"]))
def test_a_bad_sector_in_any_block_is_reported(stop: str, *, cache: bool) -> None:
    base = written(stop)
    starts = right = unknown = 0
    disk = disk_of(base)
    if not cache and disk.exists(CACHE_NAME):
        disk.remove(CACHE_NAME)
    for name in [f"log/{name}" for name in disk.list("log") if name.endswith(".seg")]:
        for at in range(0, disk.open(name).size(), BLOCK_BYTES):
            box = StoreOnDisk(disk.copy(), EAGER)
            box.clock.ms = base.clock.ms
            box.acknowledged = base.acknowledged
            disk_of(box).fail_reads(name, at, BLOCK_BYTES)
            box.open()
            for _ in range(2):
                found = looked_at(box)
                right, unknown = right + found[0], unknown + found[1]
                box.idle()
            assert box.store.failed is None
            starts += 1
    print(f"\nbad sectors, {stop}: {starts} starts; {right} entries right, {unknown} not known")
    assert starts > 20
    assert right > 10 * unknown > 0


def test_an_unreadable_disk_refuses_the_start() -> None:
    box = opened(replace(SMALL, segment_bytes=2 * UNREADABLE_BLOCKS_MAX * BLOCK_BYTES))
    mixed(box, segments=2)
    disk = disk_of(box)
    disk.kill()
    disk.fail_reads(segment_name(1))
    with pytest.raises(StorageError, match="Check the disk"):
        box.open()
