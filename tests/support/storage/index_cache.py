"""A store that writes its index cache at every check, and never compacts."""

from __future__ import annotations

from dataclasses import replace

from tests.support.storage.storage import SMALL, StoreOnDisk, sim_disk

EAGER = replace(
    SMALL,
    index_cache_interval_s=0.0,
    index_cache_segments=2,
    compact_minor_ratio=0.0,
    compact_major_ratio=0.0,
)


def opened(config: object = EAGER) -> StoreOnDisk:
    box = StoreOnDisk(sim_disk(1, cold_read_probability=0.0), config)  # type: ignore[arg-type]
    box.open()
    return box


def fill(box: StoreOnDisk, segments: int, *ledger_ids: int) -> None:
    """Append entries until `segments` further segments are sealed."""
    wanted = box.store.stats().sealed_segments + segments
    upcoming = dict.fromkeys(ledger_ids, 0)
    for one in ledger_ids:
        if one in box.store.ledgers:
            upcoming[one] = box.store.last_entry_id(one) + 1
    while box.store.stats().sealed_segments < wanted:
        for one in ledger_ids:
            box.append([(one, upcoming[one] + at, bytes(700)) for at in range(3)])
            upcoming[one] += 3
        box.idle()


def look(box: StoreOnDisk) -> None:
    """Call `check_space`, which a bookie does every few seconds, and do all that becomes due."""
    box.store.check_space()
    for _ in range(5):
        box.idle()


def check(box: StoreOnDisk) -> None:
    for (ledger_id, entry_id), entry in box.acknowledged.items():
        assert box.read(ledger_id, entry_id) == [entry]
