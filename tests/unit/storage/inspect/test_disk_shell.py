"""`quire bookie disk`: what it shows of directories, and what it checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quire.cli.main import cli
from quire.codec.log.state_records import BLOCK_BYTES, FormatError
from quire.storage.background import sealer
from quire.storage.disk import RealDisk
from quire.storage.inspect.contents import (
    SegmentDump,
    describe_ledger,
    end_of_log,
    list_files,
    open_segment,
)
from quire.storage.inspect.snapshot import identity_of, with_log
from quire.storage.interfaces import File
from quire.storage.recovery import scan
from quire.storage.recovery.log_recovery import LogRecovery
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.segment import number_of, segment_name
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.segments import (
    LEDGERS,
    checked,
    contents,
    filled,
    flip,
    forgetful,
    problems_of,
    rebuilt,
    sealed_numbers,
    spoilt,
)
from tests.support.storage.storage import StoreOnDisk, make_entry, sim_disk

# -- looking ----------------------------------------------------------------------------------


def test_every_file_of_a_directory_is_listed_with_its_kind_and_state() -> None:
    disk = sim_disk()
    box = filled(disk)
    found = {one.name: one for one in list_files(disk)}
    states = [one.segment.state for one in found.values() if one.segment is not None]
    assert states == ["sealed"] * 3 + ["open"] + ["prepared"] * (len(states) - 4)
    usage = {one.number: one for one in box.store.usage()}
    for one in found.values():
        if one.segment is not None and one.segment.state == "sealed":
            assert one.size_bytes == usage[one.segment.number].file_bytes
            assert one.segment.trailer is not None
            assert one.segment.trailer.ledgers == len(LEDGERS)
    assert found["current/DIRECTORY"].segment is None
    assert "LOCK" not in found


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (segment_name(26), 26), ("log/000000000000001A.seg", None), ("log/1a.seg", None),
        ("current/VERSION", None), (segment_name(26) + ".new", None), ("1a.seg", None),
    ],
)  # fmt: skip
def test_segment_numbers_are_parsed_from_file_names(name: str, number: int | None) -> None:
    assert number_of(name) == number


def test_the_description_of_a_ledger_names_the_runs_of_its_entries() -> None:
    disk = sim_disk()
    box = filled(disk)
    box.append([(1, 5, bytes(300))])  # once more
    box.idle()
    for ledger_id in LEDGERS:
        found = describe_ledger(disk, ledger_id)
        assert found is not None
        last = box.store.last_entry_id(ledger_id)
        assert found.entries == [(0, last)]
        assert (found.last_entry_id, found.fenced) == (last, ledger_id == 2)
        assert found.has_master_key
        assert [part.sealed for part in found.parts] == [True, True, True, False]
        for part in found.parts:
            with open_segment(disk, part.segment) as dump:
                file = dump._file
                for run in part.runs:
                    frame = bytes(file.read(run.offset, run.size_bytes) or b"")
                    assert frame.count(make_entry(ledger_id, run.first, bytes(300))) == 1
    one = describe_ledger(disk, 1)
    assert one is not None
    assert sum(run.count for part in one.parts for run in part.runs) == one.last_entry_id + 2
    assert describe_ledger(disk, 77) is None


def test_the_last_group_counts_before_the_next_start_rewrites_it() -> None:
    """The entries, keys and fences of the last group after a kill are listed."""
    disk = sim_disk()
    box = StoreOnDisk(disk)
    box.open()
    box.append([(1, 0, b"first")])
    box.pump()
    box.append([(7, 0, b"last")])
    box.pump()
    box.fence(7)
    box.pump()
    disk.kill()
    found = describe_ledger(disk, 7)
    assert found is not None
    assert (found.fenced, found.has_master_key, found.entries) == (True, True, [(0, 0)])
    end = end_of_log(disk)
    assert end.unsure_group is not None
    assert end.last_group == end.unsure_group - 1
    assert not end.clean
    assert problems_of(disk) == []


def test_a_deleted_ledger_has_no_runs_and_keeps_its_refusal_if_it_was_fenced() -> None:
    disk = sim_disk()
    box = filled(disk)
    box.drop([2, 3])
    box.idle()
    fenced = describe_ledger(disk, 2)
    assert fenced is not None
    assert fenced.refused_until_ms is not None
    assert fenced.parts == ()
    assert describe_ledger(disk, 3) is None
    assert problems_of(disk) == []


def test_the_end_of_the_log_is_the_end_of_its_last_group() -> None:
    disk = sim_disk()
    box = filled(disk)
    for _ in range(3):
        box.append([(1, 1000 + _, b"x")])
        box.pump()
    before = end_of_log(disk)
    assert before.unsure_group is not None
    box.close()
    end = end_of_log(disk)
    assert (end.clean, end.unsure_group, end.torn_group, end.problems) == (True, None, None, ())
    assert end.last_group is not None
    assert end.last_group >= before.unsure_group
    with open_segment(disk, end.segment) as dump:
        groups = list(dump.groups())
        assert groups[-1].header.number == end.last_group
        assert groups[-1].header.end == end.offset_bytes


def test_inspecting_and_checking_a_directory_change_nothing() -> None:
    disk = sim_disk()
    box = filled(disk)
    flip(disk, sealed_numbers(disk)[0], 3 * BLOCK_BYTES + 77)
    operations = 0

    def operate(name: str = "") -> None:
        nonlocal operations
        operations += 1

    real, disk._operate = disk._operate, operate  # type: ignore[method-assign]
    before = contents(disk)
    assert problems_of(disk)
    describe_ledger(disk, 1)
    end_of_log(disk)
    rebuilt(disk, dry_run=True)
    assert (contents(disk), operations) == (before, 0)
    disk._operate = real  # type: ignore[method-assign]
    box.append([(1, 100_000, b"goes on")])
    box.idle()


def at_open(disk: SimDisk, moment: int, box: StoreOnDisk) -> None:
    """All ledgers are dropped, and segments removed, before this open."""
    seen = 0

    def opened(name: str) -> Any:
        nonlocal seen
        seen += 1
        if seen == moment:
            box.drop(LEDGERS)
            box.idle()
        return SimDisk.open(disk, name)

    disk.open = opened  # type: ignore[method-assign]


def test_files_removed_during_an_inspection_are_reported_as_gone() -> None:
    """The store removes segments without live entries while the inspection opens files."""
    for moment in range(1, 20):
        disk = sim_disk()
        box = filled(disk)
        at_open(disk, moment, box)
        segments, problems = checked(disk)
        assert (problems, [one.problems for one in segments if one.problems]) == ((), [])
        assert all(one.state in ("sealed", "open", "gone") for one in segments)
        list(list_files(disk))
        describe_ledger(disk, 1)


def test_a_segment_rolled_during_a_check_is_not_damage() -> None:
    """The newest segment is rolled after it was read and before the next one is read."""
    disk = sim_disk()
    box = filled(disk)
    turn, writing = 10_000, False

    def current() -> int:
        [number] = [one.number for one in box.store.usage() if one.state == "current"]
        return number

    def opened(name: str) -> Any:
        nonlocal turn, writing
        if not writing and name == segment_name(current() + 1):
            writing = True
            for _ in range(20):
                box.append([(ledger_id, turn, bytes(300)) for ledger_id in LEDGERS])
                box.pump()
                turn += 1
            writing = False
        return SimDisk.open(disk, name)

    disk.open = opened  # type: ignore[method-assign]
    once = LogRecovery(disk, identity_of(disk), Catalogue()).run()
    assert "lost" in once.problems[0]
    for _ in range(2):
        assert with_log(disk, lambda recovered, _: tuple(recovered.problems)) == ()
        assert problems_of(disk) == []


def test_a_group_written_between_two_reads_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group was missing when groups were read, and existed afterwards.

    `lastmark` once reported that a group of a running bookie was lost.
    """
    disk = sim_disk()
    box = filled(disk)
    looks = [True]

    def is_used(file: File, at: int, size: int) -> bool:
        if looks:
            looks.pop()
            box.append([(ledger_id, 10_000, bytes(300)) for ledger_id in LEDGERS])
            box.pump()
        return used(file, at, size)

    used = scan._is_used
    monkeypatch.setattr(scan, "_is_used", is_used)
    once = LogRecovery(disk, identity_of(disk), Catalogue()).run()
    assert "lost" in once.problems[0]
    looks.append(True)
    assert end_of_log(disk).problems == ()


def test_a_segment_that_is_being_sealed_is_examined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sim_disk()
    filled(disk)
    looks = [True]
    monkeypatch.setattr(SegmentDump, "has_remains", lambda *_: bool(looks and looks.pop()))
    assert problems_of(disk) == []
    assert not looks


@pytest.mark.parametrize("lost", [False, True])
def test_an_open_segment_that_disappears_is_gone_or_lost_at_the_second_examination(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment was being sealed and nothing in it is live any more, or its file is lost."""
    disk = sim_disk()
    box = filled(disk)
    (number,) = [one.number for one in box.store.usage() if one.state == "current"]

    def has_remains(*_: Any) -> bool:
        monkeypatch.undo()
        turn = 10_000
        while number == max(one.number for one in box.store.usage() if one.state == "current"):
            box.append([(5, turn, bytes(300))])
            box.pump()
            turn += 1
        if not lost:
            box.drop([*LEDGERS, 5])
        box.idle()
        assert disk.exists(segment_name(number)) == lost
        if lost:
            disk.remove(segment_name(number))
        return True

    monkeypatch.setattr(SegmentDump, "has_remains", has_remains)
    told = [(one.state, bool(one.problems)) for one in checked(disk)[0] if one.number == number]
    assert told == [("open", True) if lost else ("gone", False)]
    assert problems_of(disk) == ([f"{segment_name(number)} is missing"] if lost else [])


# -- damage -----------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_segment_is_found() -> None:
    """One bit is flipped in each block of groups, in each part of the index, and in the header."""
    disk = sim_disk()
    box = filled(disk)
    box.close()
    number = sealed_numbers(disk)[1]
    with open_segment(disk, number) as one:
        trailer = one.description.trailer
    assert trailer is not None
    places = [10, *range(trailer.groups_at + 99, trailer.footer_at, BLOCK_BYTES)]
    places += [
        trailer.footer_at + 3, trailer.records_at + 3, trailer.checksums_at + 3,
        trailer.summary_at + 3, trailer.trailer_at + 30,
    ]  # fmt: skip
    assert problems_of(disk) == []
    for at in places:
        flip(disk, number, at)
        segments, problems = checked(disk)
        told = [one.number for one in segments if one.problems]
        assert told == [number] or (problems and str(number) in problems[0]), at
        flip(disk, number, at)
    assert problems_of(disk) == []


def test_a_check_finds_a_missing_segment() -> None:
    disk = sim_disk()
    box = filled(disk)
    box.close()
    number = sealed_numbers(disk)[0]
    disk.remove(segment_name(number))
    (told,) = problems_of(disk)
    assert told == f"{segment_name(number)} is missing"


def test_a_check_finds_an_index_that_does_not_name_all_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All checksums are right, so only the groups show the defect."""
    disk = sim_disk()
    with monkeypatch.context() as patch:
        patch.setattr(sealer, "write_footer", forgetful)
        box = filled(disk)
    told = problems_of(disk)
    assert len(told) == 3
    assert all("does not name entries" in one and "of ledger 3" in one for one in told)
    # This is right once the ledger is deleted: no start knows it any more, whether the log says why
    # ...
    box.drop([3])
    box.idle()
    with monkeypatch.context() as patch:
        patch.setattr("quire.storage.inspect.check._was_deleted", lambda *_: False)
        assert problems_of(disk) == []
    # ... or it was created again since, and the log says that it was another one before.
    box.append([(3, 0, b"anew")])
    box.idle()
    assert problems_of(disk) == []


def test_damage_in_one_part_of_an_index_leaves_the_others_readable() -> None:
    disk = sim_disk()
    filled(disk).close()
    number = sealed_numbers(disk)[0]
    spoilt(disk, number, "records")
    with open_segment(disk, number) as one:
        assert one.description.trailer is not None
        assert one.description.trailer.records
        assert "state records" in one.problem
        assert one.summary is not None
        assert one.rows(1)
    spoilt(disk, number, "records")
    spoilt(disk, number, "rows")
    with open_segment(disk, number) as one:
        assert one.problem == ""
        with pytest.raises(FormatError, match="ledger 1 in the segment does not match"):
            one.rows(1)
        assert one.rows(4)
    found = describe_ledger(disk, 1)
    assert found is not None
    assert [bool(part.problem) for part in found.parts] == [True, False, False, False]


def test_a_read_only_disk_cannot_write_or_create(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    filled(disk).close()
    file = RealDisk(tmp_path, read_only=True).open(segment_name(1))
    assert file.read(0, 8) == b"QSEGMENT"
    with pytest.raises(OSError, match="descriptor"):
        file.write([b"x"], 0)
    file.close()
    disk.close()
    RealDisk(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()


# -- the commands -----------------------------------------------------------------------------


def quire(*words: str) -> Result:
    return CliRunner().invoke(cli, ["bookie", "disk", *words])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    disk = RealDisk(tmp_path)
    disk.lock()
    filled(disk).close()
    disk.close()
    return tmp_path


def lines(result: Result, status: int = 0) -> list[dict[str, Any]]:
    assert result.exit_code == status, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_commands_files_segment_ledger_and_last_mark_describe_a_directory(
    directory: Path,
) -> None:
    place = str(directory)
    kinds = {one["name"]: one["kind"] for one in lines(quire("files", place, "--json"))}
    assert kinds["log/CLEAN"] == "mark of a clean stop"
    number = next(
        one["segment"]
        for one in lines(quire("files", place, "--json"))
        if one["kind"] == "segment" and one["state"] == "sealed"
    )
    head, *rest = lines(quire("segment", place, str(number), "--runs", "--json"))
    assert (head["segment"], head["state"]) == (number, "sealed")
    groups = [one for one in rest if one["what"] == "group"]
    index = [one for one in rest if one["what"] == "index"]
    assert [one["ledger_id"] for one in index] == list(LEDGERS)
    rows = [row for one in groups for row in one["rows"]]
    assert sum(row["count"] for row in rows) == sum(one["entries"] for one in groups)
    named = quire("segment", place, segment_name(number)).stdout
    assert named == quire("segment", place, str(number)).stdout
    assert "master key of ledger 1" in named
    assert "key  " not in named
    assert quire("segment", place, "nine").exit_code == 2
    gone = quire("segment", place, "12345")
    assert (gone.exit_code, gone.stderr.count("\n")) == (1, 1)
    (ledger,) = lines(quire("ledger", place, "2", "--json"))
    assert (ledger["fenced"], ledger["entries"][0][0]) == (True, 0)
    assert "ledger 2: fenced" in quire("ledger", place, "2", "--runs").stdout
    nothing = quire("ledger", place, "99")
    assert (nothing.exit_code, "no entries of ledger 99" in nothing.stderr) == (1, True)
    (end,) = lines(quire("last-mark", place, "--json"))
    assert (end["clean"], end["problems"]) == (True, [])
    assert f"byte {end['offset']}, after group {end['group']}" in quire("last-mark", place).stdout
    assert f" {number} sealed" in quire("files", place).stdout


def test_the_commands_check_and_rebuild_index_find_and_repair_damage(directory: Path) -> None:
    place = str(directory)
    *segments, total = lines(quire("check", place, "--json"))
    assert (total["ok"], total["sealed"], len(segments)) == (True, 4, 4)
    assert "no damage" in quire("check", place).stdout
    disk = RealDisk(directory)
    number = sealed_numbers(disk)[0]
    spoilt(disk, number, "summary")
    bad = quire("check", place)
    assert bad.exit_code == 1
    assert f"segment {number}: its index is" in bad.stdout
    assert lines(quire("check", place, "--json"), 1)[-1]["damaged_segments"] == 1
    assert quire("segment", place, str(number)).exit_code == 1
    disk.lock()
    refused = quire("rebuild-index", place)
    assert (refused.exit_code, "in use by a running bookie" in refused.stderr) == (1, True)
    planned = lines(quire("rebuild-index", place, "--dry-run", "--json"))
    disk.close()
    assert quire("check", place).exit_code == 1
    done = lines(quire("rebuild-index", place, "--json"))
    assert [one["outcome"] for one in done] == [one["outcome"] for one in planned]
    assert [one["segment"] for one in done if one["outcome"] == "rebuilt"] == [number]
    assert quire("check", place).exit_code == 0
    flip(disk, number, 2 * BLOCK_BYTES)
    assert quire("segment", place, str(number)).exit_code == 1


def test_commands_refuse_a_folder_without_data_and_create_nothing(tmp_path: Path) -> None:
    commands: list[Callable[[str], Result]] = [
        lambda place: quire("files", place), lambda place: quire("segment", place, "1"),
        lambda place: quire("ledger", place, "1"), lambda place: quire("check", place),
        lambda place: quire("last-mark", place), lambda place: quire("rebuild-index", place),
    ]  # fmt: skip
    for command in commands:
        done = command(str(tmp_path))
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert "is not a data directory" in done.stderr
        assert list(tmp_path.iterdir()) == []
        assert command(str(tmp_path / "missing")).exit_code == 2
