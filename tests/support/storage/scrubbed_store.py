"""A store on a simulated disk that is scrubbed, and that records the damage it reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from quire.codec.log.state_records import BLOCK_BYTES
from quire.core.ranges import merged
from quire.errors import DamagedError, StorageError
from quire.storage.background.quarantine_record import SUFFIX
from quire.storage.background.scrub import Findings, SegmentScrub
from quire.storage.background.scrubber import target_of
from quire.storage.config import StorageConfig
from quire.storage.segment.segment import LOG_DIRECTORY, LogSegment, segment_name
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.storage import SMALL, StoreOnDisk, mixed, sim_disk

EAGER = replace(
    SMALL,
    compact_minor_ratio=0.0,
    compact_major_ratio=0.0,
    scrub_interval_s=5.0,
    scrub_bytes_per_s=0,
)
"""A configuration that scrubs every 5 seconds without a limit on the rate, and never compacts."""
ON_SUSPICION = replace(EAGER, scrub_interval_s=0.0)


class Box(StoreOnDisk):
    """A store that records its reports of damage and of failures."""

    def __init__(self, disk: SimDisk, config: StorageConfig) -> None:
        super().__init__(disk, config)
        self.events: list[tuple[int, bool]] = []
        self.failures: list[StorageError] = []
        self.disk: SimDisk = disk

    def open(self) -> Any:
        report = super().open()
        self.store.on_damage = lambda path, damage, healed: self.events.append(
            (damage.number, healed)
        )
        self.store.on_failure = self.failures.append
        return report

    def later(self, times: int = 4) -> None:
        """Let `times` minutes pass, and each time do everything that is due."""
        for _ in range(times):
            self.clock.ms += 61_000
            self.store.check_space()
            self.pump()
            for _ in range(500):
                if not self.timers.fire():
                    break
                self.pump()
            else:
                raise AssertionError("the store does not finish")

    def segment(self, number: int) -> LogSegment:
        return self.store._catalogue.segments[number]

    def flip(self, number: int, block: int, at: int = 100) -> None:
        self.disk.flip_bit(segment_name(number), block * BLOCK_BYTES + at)

    def unreadable(self) -> dict[int, list[tuple[int, int]]]:
        """Read every acknowledged entry, and return the ranges of damaged ones by ledger.

        Every other entry must be right, and none may be absent.
        """
        found: dict[int, list[tuple[int, int]]] = {}
        for (ledger_id, entry_id), entry in self.acknowledged.items():
            try:
                assert self.read(ledger_id, entry_id) == [entry]
            except DamagedError:
                found.setdefault(ledger_id, []).append((entry_id, entry_id))
        return {ledger_id: merged(ranges) for ledger_id, ranges in sorted(found.items())}

    def heal(self, lacking: dict[int, list[tuple[int, int]]]) -> None:
        """Append the entries in these ranges again, as a replication worker repairs them."""
        for ledger_id, ranges in lacking.items():
            for first, last in ranges:
                entries = range(first, last + 1)
                self.append(
                    [(ledger_id, n, self.written[ledger_id, n][32:]) for n in entries], reserve=True
                )
        self.idle()

    def records(self) -> list[str]:
        return [name for name in self.disk.list(LOG_DIRECTORY) if name.endswith(SUFFIX)]


def filled(config: StorageConfig = EAGER, segments: int = 2) -> Box:
    box = Box(sim_disk(1, cold_read_probability=0.0), config)
    box.open()
    box.idle()
    mixed(box, segments=segments)
    return box


def look(box: Box, number: int) -> Findings:
    segment = box.segment(number)
    file = box.disk.open(segment.name)
    scrub = SegmentScrub(file, box.store._directory_id, target_of(segment))
    while scrub.step():
        pass
    file.close()
    return scrub.found


def blocks_of(box: Box, number: int) -> Iterator[int]:
    size = box.segment(number).file_bytes
    return iter(range(-(-size // BLOCK_BYTES)))
