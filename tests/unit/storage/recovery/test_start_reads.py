"""A start reads the footer of each segment once, or the trailer if the index cache covers it."""

from __future__ import annotations

from typing import Any

import pytest

from quire.codec.log.footer import TRAILER_BYTES
from quire.storage.inspect.contents import open_segment
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.recovery.log_recovery import LogRecovery, RecoveryReport
from quire.storage.segment.segment import segment_name
from tests.support.storage.index_cache import check, fill, look, opened
from tests.support.storage.storage import StoreOnDisk, disk_of


class CountingFile:
    def __init__(self, file: Any, reads: list[tuple[int, int]]) -> None:
        self._file = file
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, offset: int, size: int, *, wait: bool = True) -> Any:
        data = self._file.read(offset, size, wait=wait)
        if data:
            self._reads.append((offset, offset + len(data)))
        return data


class CountingDisk:
    """Records the first and last byte of each read of a file."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk
        self.reads: dict[str, list[tuple[int, int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, name: str) -> Any:
        return CountingFile(self._disk.open(name), self.reads.setdefault(name, []))

    def create(self, name: str) -> Any:
        return CountingFile(self._disk.create(name), [])


def footers(box: StoreOnDisk) -> dict[str, tuple[int, int, int]]:
    """Return where each sealed segment's state records begin, its summary, and its trailer."""
    found = {}
    for one in box.store.usage():
        try:
            with open_segment(disk_of(box), one.number) as dump:
                trailer = dump.description.trailer
        except FileNotFoundError:
            continue
        if trailer is not None:
            size = trailer.file_bytes
            found[segment_name(one.number)] = (
                trailer.records_at, trailer.summary_at, size - TRAILER_BYTES,
            )  # fmt: skip
    return found


def counted_start(box: StoreOnDisk) -> tuple[RecoveryReport, dict[str, list[tuple[int, int]]]]:
    real = disk_of(box)
    counting = CountingDisk(real)
    box.disk = counting  # type: ignore[assignment]
    try:
        return box.open(), counting.reads
    finally:
        box.disk = real


def in_footer(reads: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    return [one for one in reads if one[1] > start]


def filled(*, cached: bool, clean: bool) -> StoreOnDisk:
    """Return a store with five or more sealed segments. The cache does not cover the last one."""
    box = opened()
    fill(box, 4, 1, 2, 3)
    box.fence(2)
    box.drop([3])
    box.idle()
    look(box)
    fill(box, 1, 1, 2)
    if clean:
        box.close()
    disk_of(box).kill()
    if not cached:
        disk_of(box).remove(CACHE_NAME)
    return box


@pytest.mark.parametrize("clean", [True, False])
def test_each_footer_is_read_once(clean: bool) -> None:
    box = filled(cached=False, clean=clean)
    sealed = footers(box)
    assert len(sealed) >= 5
    report, reads = counted_start(box)
    assert (report.index_cache, report.problems, report.clean) == ("", (), clean)
    for name, (records_at, summary_at, trailer_at) in sealed.items():
        found = in_footer(reads[name], records_at)
        assert len(set(found)) == len(found), name
        wanted = {(summary_at, trailer_at), (trailer_at, trailer_at + TRAILER_BYTES)}
        assert wanted <= set(found)
        # Besides the state records, where there are some.
        assert all(start == records_at for start, _ in set(found) - wanted)
    check(box)


@pytest.mark.parametrize("clean", [True, False])
def test_only_the_trailer_is_read_of_segments_in_the_cache(clean: bool) -> None:
    box = filled(cached=True, clean=clean)
    sealed = footers(box)
    report, reads = counted_start(box)
    covered = int(report.index_cache.removeprefix("used for ").split()[0])
    assert covered >= 4
    whole = 0
    for at, name in enumerate(sorted(sealed)):
        records_at, summary_at, trailer_at = sealed[name]
        found = in_footer(reads[name], records_at)
        assert len(set(found)) == len(found), name
        whole += (summary_at, trailer_at) in found
        if at < covered:  # What the newest segment says about others is needed, too.
            trailer = [(trailer_at, trailer_at + TRAILER_BYTES)]
            assert [one for one in found if one[0] != records_at] == trailer
    assert whole == len(sealed) - covered
    assert whole == (not clean)
    check(box)


@pytest.mark.parametrize(("cached", "which"), [(False, 0), (False, 2), (False, -1), (True, -1)])
def test_a_start_begins_again_once_if_a_footer_turns_out_to_be_damaged(
    cached: bool, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trailer was accepted first. The start begins again once and reads the groups instead."""
    looks: list[bool] = []
    attempt = LogRecovery._look_once

    def counting(self: LogRecovery) -> Any:
        looks.append(self._whole_footers)
        return attempt(self)

    box = filled(cached=cached, clean=False)
    name = sorted(footers(box))[which]
    _, summary_at, _ = footers(box)[name]
    disk_of(box).flip_bit(name, summary_at + 3)
    monkeypatch.setattr(LogRecovery, "_look_once", counting)
    report = box.open()
    assert looks == [False, True]
    assert report.problems == ()
    assert report.index_cache.startswith("used for") is cached
    assert box.store.ledger_ids() == [1, 2]
    assert box.store.ledgers[2].fence_durable
    check(box)
