"""The scrub: damage is found in every block, recorded, and reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.codec.log.group import GROUP_MAGIC
from quire.codec.log.state_records import BLOCK_BYTES, FormatError
from quire.storage.background.quarantine_record import (
    LEDGERS_MAX,
    SegmentDamage,
    decode_record,
    encode_record,
    limited,
    record_name,
)
from quire.storage.background.scrub import SegmentScrub
from quire.storage.background.scrubber import SCRUB_NAME, Round, target_of
from quire.storage.inspect.scrub_report import DirectoryScrub
from quire.storage.inspect.space_report import look as look_at_space
from quire.storage.segment.segment import segment_name
from tests.support.storage.scrubbed_store import EAGER, ON_SUSPICION, blocks_of, filled, look
from tests.support.storage.storage import (
    SMALL,
    disk_of,
    entries,
    lacks,
    make_batch,
    opened,
    sealed,
)

# -- finding ----------------------------------------------------------------------------------


def test_a_scrub_of_intact_segments_finds_no_damage() -> None:
    box = filled()
    box.later()
    assert box.store.stats().scrub_rounds > 0
    assert box.store.stats().scrubbed_bytes > sum(one.file_bytes for one in box.store.usage()) / 2
    assert box.events == []
    assert lacks(box.store) == {}
    assert box.records() == []


def test_a_flipped_bit_is_found_and_only_the_entries_it_hits_are_reported() -> None:
    """Damage in header, groups and footer is found, up to the last byte.

    The scrub reports exactly the entries that reads refuse.
    """
    box = filled()
    [number, *_] = sealed(box)
    segment = box.segment(number)
    assert look(box, number).clean
    hit = 0
    for block in blocks_of(box, number):
        at = min(block * BLOCK_BYTES + 1_200, segment.file_bytes - 1)
        box.disk.flip_bit(segment_name(number), at, 3)
        found = look(box, number)
        in_groups = segment.groups_at <= at < segment.end
        assert found.header == (at < segment.groups_at)
        assert found.blocks == ([(block, block)] if in_groups else [])
        if at >= segment.end:
            assert found.index
        if in_groups:
            assert found.ledgers == box.unreadable()
            hit += bool(found.ledgers)
        box.disk.flip_bit(segment_name(number), at, 3)
        assert look(box, number).clean
    assert hit > 5
    last = segment.file_bytes - 1
    box.disk.flip_bit(segment_name(number), last, 0)
    assert "trailer" in look(box, number).index


def test_the_current_segment_is_scrubbed_up_to_its_synced_end() -> None:
    box = filled()
    for n in range(5):
        box.append([(50, n * 3 + k, b"x" * 700) for k in range(3)])
        box.pump()
    current = box.store.usage()[-1].number
    box.append([(50, 15, b"queued")])
    block = (box.segment(current).end - BLOCK_BYTES) // BLOCK_BYTES
    box.flip(current, block, 800)
    found = look(box, current)
    assert found.blocks == [(block, block)]
    box.idle()
    box.later()
    assert lacks(box.store) == box.unreadable() != {}


def test_missing_entries_are_reported_once_their_summary_is_computed() -> None:
    """The summary of all records is computed again when one changes."""
    box = filled()
    [number, *_] = sealed(box)
    asked: list[int] = []
    quarantine = box.store._maintenance.quarantine
    tick = quarantine.tick

    def ask_first() -> None:  # it is not checked yet, when a scrub has found something
        asked.append(len(box.store.lacking_ledgers()))
        tick()

    quarantine.tick = ask_first  # type: ignore[method-assign]
    box.flip(number, 4)
    box.later()
    assert asked.count(0) > 1
    assert lacks(box.store) == box.unreadable() != {}
    assert box.store.stats().damaged_ledgers == len(box.unreadable())


def test_frames_that_contradict_their_run_are_found_despite_valid_checksums() -> None:
    box = filled()
    batch = make_batch([(60, n, b"abc") for n in range(3)])
    box.store.create_ledger(60, b"k" * 20)
    batch.runs[0].first = 7  # as a defect would have it
    box.store.append(batch, lambda batch, error: None)
    box.idle()
    box.later()
    assert lacks(box.store) == {60: [(7, 9)]}


def test_an_index_that_names_entries_missing_from_the_groups_is_found() -> None:
    box = filled()
    [number, *_] = sealed(box)
    segment = box.segment(number)
    file = box.disk.open(segment.name)
    scrub = SegmentScrub(file, box.store._directory_id, target_of(segment))
    while size := scrub.step():
        if scrub._summary is not None and scrub._starts and size:
            # A value of a table that is not in the index.
            scrub._firsts[len(scrub._firsts) // 2] += 1
            break
    while scrub.step():
        pass
    assert "names entries" in scrub.found.index


def test_a_read_that_finds_damage_triggers_a_scrub_of_the_segment() -> None:
    box = filled(ON_SUSPICION)
    box.later()
    assert box.store.stats().scrubbed_segments == 0
    [number, *_] = sealed(box)
    box.flip(number, 5)
    box.later()
    assert lacks(box.store) == {}  # Nothing was checked.
    unreadable = box.unreadable()
    box.later(1)
    assert box.events == [(number, False)]
    assert lacks(box.store) == unreadable
    # Reads that meet it again and again cost no scrub each.
    before = box.store.stats().scrubbed_segments
    for _ in range(5):
        assert box.unreadable() == unreadable
        box.store.check_space()
        box.idle()
    assert box.store.stats().scrubbed_segments <= before + 1


def test_damage_found_at_a_start_triggers_a_scrub() -> None:
    box = filled(ON_SUSPICION, segments=1)
    box.append([(70, n, b"y" * 300) for n in range(20)])
    box.idle()
    current = box.store.usage()[-1].number
    box.disk.kill()
    box.flip(current, box.segment(current).end // BLOCK_BYTES - 2, 50)
    assert box.open().damaged_blocks == 1
    box.idle()
    box.later()
    assert box.events == [(current, False)]
    assert lacks(box.store) == box.unreadable() == {70: box.unreadable()[70]}


def test_a_transient_device_error_is_reported_as_damage_until_it_ends() -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.disk.fail_reads(segment_name(number), 6 * BLOCK_BYTES, BLOCK_BYTES)
    box.later()
    assert box.events == [(number, False)]
    assert lacks(box.store) == box.unreadable() != {}
    box.disk.mend_reads(segment_name(number))
    box.later()
    assert box.events == [(number, False), (number, True)]
    assert lacks(box.store) == {}
    assert box.records() == []
    assert box.store.failed is None


def test_an_unreadable_segment_is_reported_as_missing_all_its_entries() -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.disk.fail_reads(segment_name(number))
    box.later()
    assert lacks(box.store) == box.unreadable() != {}


# -- remembered -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "crash", "close"])
def test_damage_is_remembered_after_a_restart_without_a_new_scrub(end: str) -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.flip(number, 4)
    box.later()
    lacking = lacks(box.store)
    assert lacking == box.unreadable() != {}
    if end == "close":
        box.close()
    elif end == "crash":
        box.disk.crash()
    else:
        box.disk.kill()
    box.config = ON_SUSPICION
    box.open()
    assert next(iter(box.store.usage())).why.startswith("quarantined: 1 block is damaged")
    box.later(1)
    assert lacks(box.store) == lacking
    assert box.store.stats().scrubbed_segments == 0


def test_a_damaged_quarantine_record_is_recreated() -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.flip(number, 4)
    box.later()
    lacking = lacks(box.store)
    box.close()
    box.disk.flip_bit(record_name(number), 60)
    box.config = ON_SUSPICION
    box.open()
    box.later()
    assert lacks(box.store) == lacking
    assert box.store.stats().scrubbed_segments == 1
    file = box.disk.open(record_name(number))
    assert decode_record(file.read(0, file.size()) or b"", number).blocks == ((4, 4),)


def test_on_a_full_disk_the_quarantine_record_is_written_later() -> None:
    box = filled()
    [number, *_] = sealed(box)
    room, box.disk.capacity_bytes = box.disk.capacity_bytes, 0
    box.flip(number, 4)
    box.later()
    assert lacks(box.store) == box.unreadable() != {}
    assert box.store.failed is None
    box.disk.capacity_bytes = room
    box.later(1)
    assert box.records() == [record_name(number).rpartition("/")[2]]


@pytest.mark.parametrize("name", ["record", "round"])
def test_a_failed_sync_of_a_quarantine_record_or_scrub_note_is_fatal(name: str) -> None:
    box = filled()
    [number, *_] = sealed(box)
    if name == "record":
        box.flip(number, 4)
        box.disk.fail_sync_once(f"{record_name(number)}.new")
    else:
        box.disk.fail_sync_once(f"{SCRUB_NAME}.new")
    box.later()
    assert len(box.failures) == 1
    assert "the disk of" in str(box.failures[0])
    assert box.store.failed is box.failures[0]


def test_a_scrub_round_continues_after_a_restart() -> None:
    config = replace(EAGER, scrub_interval_s=10_000.0, scrub_bytes_per_s=1)
    box = filled(config, segments=4)
    first = sealed(box)[0]
    steps = 0
    box.clock.ms += 700_000
    box.store.check_space()
    box.pump()
    while box.store._maintenance.scrubber.upcoming <= first + 1:
        box.clock.ms += 61_000
        box.timers.fire()
        box.pump()
        steps += 1
        assert steps < 500
    upcoming = box.store._maintenance.scrubber.upcoming
    began_ms = box.store._maintenance.scrubber._round.began_ms
    box.disk.crash()
    box.open()
    assert box.store._maintenance.scrubber.upcoming == upcoming
    assert box.store._maintenance.scrubber._round.began_ms == began_ms > 0
    box.config = replace(config, scrub_bytes_per_s=0)
    box.disk.kill()
    box.open()
    box.clock.ms += 700_000
    box.later(1)
    assert 0 < box.store.stats().scrubbed_segments < len(box.store.usage())
    assert box.store.stats().scrub_rounds == 1
    # The next one when its time has come, and of everything.
    box.later(1)
    assert box.store.stats().scrub_rounds == 1
    box.clock.ms += 10_000_000
    box.later(1)
    assert box.store.stats().scrub_rounds == 2


def test_an_invalid_note_of_the_scrub_round_is_ignored() -> None:
    assert Round.decode(Round(5, 7).encode()) == Round(5, 7)
    for data in (b"", b"format: 2\nbegan_ms: 1\nnext: 1\n", b"format: 1\nnext: x\n", b"\xff"):
        assert Round.decode(data) is None


def test_a_scrub_is_limited_to_its_configured_rate() -> None:
    box = filled(replace(EAGER, scrub_bytes_per_s=1_000))
    delays: list[float] = []
    schedule = box.store._maintenance.scrubber._schedule

    def noted(delay: float, callback: Any) -> Any:
        delays.append(delay)
        return schedule(delay, callback)

    box.store._maintenance.scrubber._schedule = noted
    box.later(1)
    stats = box.store.stats()
    assert stats.scrubbed_segments == len(box.store.usage())
    assert sum(delays) >= 0.9 * stats.scrubbed_bytes / 1_000
    assert max(delays) <= (SMALL.max_group_bytes + 4 * BLOCK_BYTES) / 1_000


# -- records ----------------------------------------------------------------------------------


def test_quarantine_records_round_trip_and_are_limited_in_size() -> None:
    many = {n: [(k * 3, k * 3) for k in (0, 5, 99)] for n in range(LEDGERS_MAX + 5)}
    ledgers, more = limited(many)
    assert more
    assert len(ledgers) == LEDGERS_MAX
    for ranges in ledgers.values():
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 297
    damage = SegmentDamage(7, 123, ((1, 2), (5, 5)), True, "why", 2, False, ledgers, more)
    data = encode_record(damage)
    assert len(data) < 1024 * 1024
    assert decode_record(data, 7) == damage
    for bad in (b"", data[:-3], data.replace(b"why", b"who"), b"crc: 00000000\n{}\n"):
        with pytest.raises(FormatError):
            decode_record(bad, 7)
    with pytest.raises(FormatError):
        decode_record(data, 8)


# -- commands ---------------------------------------------------------------------------------


def test_the_scrub_of_a_directory_agrees_with_its_bookie() -> None:
    box = filled(segments=3)
    numbers = sealed(box)
    assert [one.clean for one in DirectoryScrub(box.disk).segments()] == [True] * (len(numbers) + 1)
    box.flip(numbers[0], 4)
    trailer = box.segment(numbers[1]).trailer
    assert trailer is not None
    box.disk.flip_bit(segment_name(numbers[1]), trailer.summary_at + 3)
    box.disk.flip_bit(segment_name(numbers[2]), trailer.footer_at // 2)
    sizes: list[int] = []
    found = {one.number: one for one in DirectoryScrub(box.disk).segments(sizes.append)}
    assert sum(sizes) >= 0.9 * DirectoryScrub(box.disk).total_bytes - SMALL.segment_bytes
    assert [one.clean for one in found.values()] == [False, False, False, True]
    assert "footer is damaged" in found[numbers[1]].index
    assert found[numbers[1]].lacking == {}
    box.store._cache._values.clear()
    lacking: dict[int, list[tuple[int, int]]] = {}
    for one in found.values():
        for ledger_id, ranges in one.lacking.items():
            lacking.setdefault(ledger_id, []).extend(ranges)
    box.later()
    assert {k: sorted(v) for k, v in lacks(box.store).items()} == lacking
    box.heal(lacks(box.store))
    box.disk.kill()
    healed = {one.number: one for one in DirectoryScrub(box.disk).segments()}
    assert healed[numbers[0]].damaged == found[numbers[0]].damaged
    assert healed[numbers[0]].lacking == {}


@pytest.mark.parametrize("missing", [0, 1, 20])
def test_the_scrub_of_a_directory_takes_an_incomplete_group_for_no_damaged_footer(
    missing: int,
) -> None:
    """The first sector, one of the run table, or one of the entries was never written."""
    box = opened()
    box.append(entries(1, 0, 3))
    box.pump()
    box.append([(ledger_id, 3, bytes([1]) * 500) for ledger_id in range(1, 60)])
    box.pump()
    disk = disk_of(box)
    disk.kill()
    file = disk.open(segment_name(box.store.usage()[-1].number))
    start = bytes(file.read(0, 1 << 20) or b"").rindex(GROUP_MAGIC)
    file.write([bytes(512)], start + 512 * missing)
    file.sync()
    scrub = DirectoryScrub(disk)
    assert scrub.problems == ()
    assert [one.clean for one in scrub.segments()] == [True]
    report = box.open()
    assert (report.problems, report.negatives_unknown) == ((), False)


def test_explain_space_reports_what_a_scrub_has_found() -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.flip(number, 4)
    box.later()
    one = look_at_space(box.disk, box.config).segments[0]
    assert (one.number, one.state, one.damaged_blocks) == (number, "damaged", 1)
    assert one.lacking_ledgers == len(lacks(box.store))
    assert one.why.startswith("quarantined: 1 block is damaged, ")
