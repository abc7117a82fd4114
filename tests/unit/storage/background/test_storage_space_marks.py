"""A store whose free space is near a mark does not change its state with every segment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.storage.config import StorageConfig
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.storage import SMALL, StoreOnDisk, disk_of, entries, opened

LOW, HIGH, DWELL_S = 100_000, 150_000, 30.0
CONFIG = replace(
    SMALL, min_free_bytes=LOW, writable_free_bytes=HIGH, read_only_dwell_s=DWELL_S
)  # fmt: skip


def look(box: StoreOnDisk, free_bytes: int) -> bool:
    """Whether the store takes adds after it has found this much space free."""
    disk: SimDisk = disk_of(box)
    disk.capacity_bytes += free_bytes - disk.free_bytes()
    box.store.check_space()
    box.pump()
    return box.store.writable


def why(box: StoreOnDisk) -> str:
    return box.store.directories()[0].reason


def test_adds_stop_at_the_low_mark_and_resume_at_the_high_mark_after_the_dwell_time() -> None:
    box = opened(CONFIG)
    assert look(box, LOW)
    assert not look(box, LOW - 1)
    assert why(box) == f"{LOW - 1} bytes are free, less than {LOW}"
    box.clock.ms += round(DWELL_S * 1000)
    assert not look(box, HIGH - 1)
    assert why(box) == f"{HIGH - 1} bytes are free, and adds are taken again at {HIGH}"
    assert look(box, HIGH)
    assert look(box, LOW)
    assert not look(box, LOW - 1)
    box.clock.ms += round(DWELL_S - 1) * 1000
    assert not look(box, HIGH)
    assert why(box) == "there was too little space, and adds are taken again in 1 s"
    box.clock.ms += 1000
    assert look(box, HIGH)
    assert why(box) == ""


def test_the_reason_names_the_space_that_was_found_last() -> None:
    box = opened(CONFIG)
    for free in (LOW - 1, LOW - 500, LOW - 20):
        assert not look(box, free)
        assert why(box) == f"{free} bytes are free, less than {LOW}"


def test_the_reason_includes_the_space_reserved_for_a_compaction() -> None:
    """Without it the reason was false: "120000 bytes are free, less than 100000"."""
    box = opened(CONFIG)
    preallocated, free = box.store._preallocated, LOW + 20_000
    preallocated.held_bytes = 20_001
    preallocated._on_free(free, None)
    reason = f"{free} bytes are free, less than {free + 1}, of which 20001 are set aside"
    assert why(box) == f"{reason} for a compaction"
    preallocated.held_bytes = 0
    preallocated._on_free(free, None)
    assert why(box) == f"{free} bytes are free, and adds are taken again at {HIGH}"


def test_the_space_check_includes_the_space_reserved_for_a_compaction() -> None:
    box = opened(CONFIG)
    preallocated = box.store._preallocated
    free = disk_of(box).free_bytes()
    preallocated.held_bytes = free
    preallocated.look()
    assert not preallocated.space
    assert preallocated.error == (
        f"{free} bytes are free, less than {LOW + free}, of which {free} are set aside for a "
        "compaction"
    )


def test_the_reason_names_the_missing_segment_if_there_is_enough_space() -> None:
    """The shortage of free space ends, but there is still no segment to write to."""
    box = opened(CONFIG)
    preallocated = box.store._preallocated
    preallocated.note_shortage("there is no space for a segment of 7 bytes")
    preallocated._on_free(LOW - 1, None)
    assert why(box) == f"{LOW - 1} bytes are free, less than {LOW}"
    preallocated._on_free(LOW, None)
    assert why(box) == "there is no space for a segment of 7 bytes"


@pytest.mark.parametrize("swing", [1, 10_000, 60_000])
def test_free_space_around_the_marks_changes_the_state_once_per_dwell_time(swing: int) -> None:
    """The store checks its space ten times a second for five minutes."""
    box = opened(CONFIG)
    changes: list[bool] = []
    box.store.on_writable_changed = changes.append
    for step in range(3_000):
        look(box, LOW + (swing if step % 2 else -swing))
        box.clock.ms += 100
    at_most = 2 * 300 / DWELL_S if swing > HIGH - LOW else 1
    assert 1 <= len(changes) <= at_most + 1


def test_a_store_on_a_nearly_full_disk_changes_its_state_once_per_dwell_time() -> None:
    """Each prepared segment uses space, and deletions free some.

    Without two marks and a minimum time, the state once changed with each of them.
    """
    box = opened(replace(CONFIG, writable_free_bytes=LOW))
    changes: list[bool] = []
    box.store.on_writable_changed = changes.append
    number = 0
    for step in range(600):
        if box.store.writable:
            box.append(entries(1, number, 20, 200))
            number += 20
        box.pump()
        look(box, LOW + 1_000 + (box.config.segment_bytes if step % 10 < 5 else 0))
        box.clock.ms += 100
    assert 1 <= len(changes) <= 2 * 60 / DWELL_S + 1


def test_the_high_mark_defaults_to_a_quarter_above_the_low_mark() -> None:
    assert StorageConfig(min_free_bytes=400).free_bytes_to_resume == 500
    assert StorageConfig(min_free_bytes=400, writable_free_bytes=450).free_bytes_to_resume == 450
    with pytest.raises(ValueError, match="writable_free_bytes"):
        StorageConfig(min_free_bytes=400, writable_free_bytes=399)
