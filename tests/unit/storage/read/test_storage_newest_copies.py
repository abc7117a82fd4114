"""Entries with several copies of different content: the newest one counts, everywhere.

The copies differ if a repair has replaced a wrong one, or if the id of a deleted ledger is used
again before the bookie has noticed the deletion.
"""

from __future__ import annotations

import errno
import random

import pytest

from quire.storage.background import sealer
from quire.storage.inspect.contents import open_segment
from quire.storage.segment.footer import Sealed, SealInput, write_footer
from tests.support.storage.compaction import opened
from tests.support.storage.segments import flip
from tests.support.storage.storage import (
    SMALL,
    StoreOnDisk,
    compact,
    disk_of,
    mixed,
    sealed,
)
from tests.support.storage.storage import opened as opened_store

LEDGER = 9


def add(box: StoreOnDisk, ids: range | list[int], what: str) -> None:
    """Append copies of entries, whose content depends on `what`."""
    box.append([(LEDGER, entry, f"{what} {entry} ".encode() * 10) for entry in ids])
    box.pump()


def check_newest(box: StoreOnDisk) -> None:
    """Check that each entry has the content that was appended last, however it is read."""
    newest = {entry: data for (ledger, entry), data in box.written.items() if ledger == LEDGER}
    ids = sorted(newest)
    wanted = [newest[entry] for entry in ids]
    assert [box.read(LEDGER, entry)[0] for entry in ids] == wanted
    for at in range(len(ids)):
        assert box.read(LEDGER, ids[at], len(ids)) == wanted[at:]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (range(20), range(10)),
        (range(20), range(5, 7)),
        (range(20), [3, 12]),
        (range(20), range(10, 30)),
        (range(10, 30), range(20)),
        (range(5, 15), range(20)),
        ([*range(0, 20, 2), *range(1, 20, 2)], [4, 9]),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_a_compaction_keeps_the_newest_copy(
    old: range | list[int], new: range | list[int], together: bool
) -> None:
    """A compaction once kept the copy in the longest run, which undid a repair."""
    box = opened()
    add(box, old, "old")
    if not together:
        mixed(box, segments=1, ledgers=3)
    add(box, new, "new")
    mixed(box, segments=2, ledgers=3)
    check_newest(box)
    box.drop([1, 2, 3])
    box.pump()
    assert compact(box)
    assert box.store.ledgers[LEDGER].sealed_count == 1
    check_newest(box)
    box.close()
    box.open()
    check_newest(box)


def copies_apart(box: StoreOnDisk) -> tuple[int, int, int]:
    """Write old copies, newer ones in a full segment, and others. Return the three segments."""
    add(box, range(20), "old")
    mixed(box, segments=1, ledgers=3)
    first = sealed(box)[-1]
    add(box, range(5, 10), "new")
    while len(sealed(box)) < 2:  # a segment that is too full to be compacted
        at = box.store.last_entry_id(8) + 1 if 8 in box.store.ledgers else 0
        box.append([(8, at + one, bytes(400)) for one in range(20)])
        box.pump()
    box.idle()
    between = sealed(box)[-1]
    add(box, range(20, 25), "old")
    mixed(box, segments=1, ledgers=3)
    return first, between, sealed(box)[-1]


def test_a_compaction_does_not_move_a_copy_after_a_newer_one() -> None:
    """The output has the number of its newest source, and a segment in between was not a source."""
    box = opened()
    first, between, last = copies_apart(box)
    box.drop([1, 2, 3])
    box.pump()
    done = compact(box)
    assert (first, last) in [one.segments for one in done]
    assert between in sealed(box)
    check_newest(box)
    box.close()
    box.open()
    check_newest(box)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("part", ["rows", "summary"])
def test_a_compaction_does_not_move_a_copy_after_a_segment_with_an_unreadable_footer(
    part: str, known: bool
) -> None:
    """Its newer copies were unknown, so the older ones came after them and counted for good."""
    box = opened()
    first, between, last = copies_apart(box)
    disk = disk_of(box)
    with open_segment(disk, between) as one:
        trailer = one.description.trailer
    assert trailer is not None
    places = {
        "rows": range(trailer.footer_at, trailer.footer_at + trailer.rows_bytes),
        "summary": range(trailer.summary_at, trailer.summary_at + trailer.summary_bytes),
    }
    for at in places[part]:
        flip(disk, between, at)
    scrubber = box.store._maintenance.scrubber
    if known:
        scrubber.suspect(between)
        box.idle()
    box.drop([1, 2, 3])
    box.pump()
    done = [*compact(box), *compact(box)]
    assert {number for one in done for number in one.segments} >= {first, last}
    scrubber.suspect(between)
    box.idle()
    compact(box)  # This rewrites a segment whose footer is damaged from its groups.
    check_newest(box)
    box.close()
    box.open()
    check_newest(box)


@pytest.mark.parametrize("apart", [True, False])
def test_a_long_read_returns_newer_copies_between_older_ones(apart: bool) -> None:
    """A read from entry 4 on must not pass over entry 12, which is in the newer segment."""
    box = opened_store(SMALL)
    add(box, range(20), "old")
    if apart:
        mixed(box, segments=1, ledgers=3)
    add(box, [3, 12], "new")
    check_newest(box)
    mixed(box, segments=1, ledgers=3)
    check_newest(box)


@pytest.mark.parametrize("new", [range(5, 10), [3, 12], range(25), [0], [19]])
def test_a_segment_without_a_footer_is_older_than_later_segments(
    monkeypatch: pytest.MonkeyPatch, new: range | list[int]
) -> None:
    """It waits for space or for a repair, and the segments after it are sealed."""
    waits: list[int] = []

    def write(job: SealInput) -> Sealed:
        if job.segment.number in waits:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_footer(job)

    monkeypatch.setattr(sealer, "write_footer", write)
    box = opened_store(SMALL)
    add(box, range(20), "older")
    mixed(box, segments=1, ledgers=3)
    add(box, range(4, 18), "old")
    waits.append(box.store.usage()[-1].number)
    mixed(box, segments=1, ledgers=3)
    add(box, new, "new")
    mixed(box, segments=1, ledgers=3)
    add(box, [15], "newest")
    states = {one.number: one.state for one in box.store.usage()}
    assert states[waits[0]] == "closed"
    assert states[waits[0] + 1] == "sealed"
    check_newest(box)
    waits.clear()
    box.store.check_space()
    box.idle()
    assert "closed" not in {one.state for one in box.store.usage()}
    check_newest(box)


@pytest.mark.parametrize("seed", range(12))
def test_the_newest_copy_is_served_whatever_was_appended_before(seed: int) -> None:
    rng = random.Random(seed)
    box = opened()
    for turn in range(rng.randrange(3, 9)):
        low = rng.randrange(30)
        ids = range(low, low + rng.randrange(1, 20))
        some = sorted(rng.sample(ids, rng.randrange(1, len(ids) + 1)))
        add(box, some if rng.random() < 0.5 else ids, f"turn {turn}")
        if rng.random() < 0.6:
            mixed(box, segments=1, ledgers=6)
        if rng.random() < 0.3:
            box.drop(rng.sample(range(1, 7), rng.randrange(1, 6)))
            box.pump()
            compact(box)
    newest = {entry: data for (ledger, entry), data in box.written.items() if ledger == LEDGER}
    for again in (False, True):
        if again:
            box.drop(range(1, 7))
            box.pump()
            compact(box)
            disk_of(box).crash()
            box.open()
        for entry, data in newest.items():
            assert box.read(LEDGER, entry) == [data]
            found = box.read(LEDGER, entry, 60)
            assert found == [newest[entry + at] for at in range(len(found))]
            assert entry + len(found) not in newest
