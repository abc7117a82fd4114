"""The problem of damaged data on a bookie's disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.http.views.problems.cluster import problems
from quire.http.views.problems.problem import Problem
from quire.metadata.bookies.damage_notes import FoundDamage
from tests.support.http.problems import WELL, bookie


def damaged(segments: int, ledgers: int, directories: tuple[str, ...] = (), **recovery: Any) -> Any:
    one = {
        **bookie("a"),
        "damaged": {"segments": segments, "ledgers": ledgers},
        "directories": directories,
    }
    found = problems([one, bookie("b")], {**WELL, **recovery})
    return [one for one in found if "damaged" in one.what]


def test_a_damage_problem_names_the_bookie_and_the_repair() -> None:
    found: Problem
    (found,) = damaged(1, 2, ("/my data",))
    assert (found.severity, found.bookies) == ("warn", ("a",))
    assert (
        found.what == "a found damaged data in 1 segment of its log: 2 ledgers lack entries there"
    )
    assert found.doing == (
        "Autorecovery copies these entries from other bookies. The bookie then rewrites the segment"
    )
    assert "quire bookie scrub '/my data'" in found.next
    assert "repair is complete: quire autorecovery list. To see on its machine" in found.next
    (found,) = damaged(1, 2)
    assert "quire bookie scrub DIR" in found.next


def test_a_damage_problem_says_what_to_start_if_nobody_repairs() -> None:
    (found,) = damaged(1, 1, auditor=None)
    assert found.next.startswith("To have the copies restored: quire autorecovery start. ")
    assert "no autorecovery process is running" in found.doing
    (found,) = damaged(1, 1, enabled=False)
    assert found.next.startswith("To have the copies restored: quire autorecovery enable. ")


def test_a_damaged_segment_with_restored_entries_is_only_a_note() -> None:
    (found,) = damaged(1, 0)
    assert (found.severity, found.risk) == ("note", "")
    assert "autorecovery list" not in found.next
    assert damaged(0, 0) == []


NOW_MS = 1_900_000_000_000


def noted(*found: FoundDamage, **recovery: Any) -> list[Problem]:
    notes = {"a": found}
    return [
        one
        for one in problems(
            [bookie("a"), bookie("b")], {**WELL, **recovery}, now_ms=NOW_MS, damage=notes
        )
        if one.bookies == ("a",)
    ]


def note(**more: Any) -> FoundDamage:
    known: dict[str, Any] = {
        "directory": "/my data", "file": "log/01.seg", "found_ms": NOW_MS - 12_000, "ledgers": 2,
        "named": (7, 9), "entries": 5,
    }  # fmt: skip
    return FoundDamage(**{**known, **more})


def test_a_damage_note_names_file_time_and_next_step() -> None:
    (one,) = noted(note())
    assert (one.severity, one.what) == (
        "warn",
        "a found damage in /my data/log/01.seg 12 s ago, at 2030-03-17T17:46:28Z: 5 entries of 2 "
        "ledgers (7, 9) are not restored yet",
    )
    assert one.next == (
        "To see whether the repair is complete: quire autorecovery list. After that, to read "
        "every copy of ledger 7, for example: quire explain ledger 7 --deep. Look at the disk, on "
        "the machine of the bookie: "
        "smartctl -a \"$(findmnt -no SOURCE -T '/my data')\". If it reports errors, or if more "
        "damage is found, replace the disk. To check all files in the directory: quire bookie "
        "scrub '/my data'"
    )
    assert one.doing.startswith("Autorecovery copies these entries")
    (one,) = noted(note(), auditor=None)
    assert one.next.startswith(
        "To have the copies restored: quire autorecovery start. To see whether"
    )
    assert "no autorecovery process is running" in one.doing


def test_a_damage_note_is_kept_after_the_repair() -> None:
    (one,) = noted(note(repaired_ms=NOW_MS - 2_000), auditor=None)
    assert one.severity == "warn"
    assert one.what.endswith("5 entries of 2 ledgers (7, 9) were restored 10 s later")
    assert one.next.startswith(
        "To read every copy of ledger 7, for example: quire explain ledger 7 --deep. Look at the "
        "disk"
    ), "nothing has to be started for it"
    assert one.doing == (
        "The bookie has every entry again and rewrites the damaged segment under the same name, "
        "which then shows no damage. This finding ends a day after the repair"
    ), "people looked for damage in the file that is named"
    (one,) = noted(note(repaired_ms=NOW_MS), note(directory="/b", repaired_ms=NOW_MS))
    assert one.doing == (
        "The bookie has every entry again and rewrites each damaged segment under the same name, "
        "and they then show no damage. This finding ends a day after the repair"
    )
    (one,) = noted(note(file="", repaired_ms=NOW_MS))
    assert one.doing == (
        "The bookie has every entry again. This finding ends a day after the repair"
    )
    (one,) = noted(note(entries=0, ledgers=0, named=(), repaired_ms=NOW_MS))
    assert one.what.endswith(": no entry is missing")
    assert one.next.startswith("Look at the disk")
    (one,) = noted(note(ledgers=1, named=(7,)))
    assert "to read every copy of ledger 7: quire explain ledger 7 --deep. " in one.next
    (one,) = noted(note(entries=1, ledgers=9, repaired_ms=NOW_MS))
    assert "1 entry of 9 ledgers (such as 7, 9) was restored" in one.what


def test_a_damage_note_says_how_many_blocks_are_damaged() -> None:
    """One flipped bit and a bad region of the disk looked the same."""
    (one,) = noted(note(blocks=45))
    assert one.what.startswith("a found damage in /my data/log/01.seg (45 blocks) 12 s ago, at ")
    (one,) = noted(note(blocks=1, repaired_ms=NOW_MS), note(directory="/b", blocks=2))
    assert one.items[0].startswith("damage in /b/log/01.seg (2 blocks) 12 s ago")
    assert one.items[1].startswith("damage in /my data/log/01.seg (1 block) 12 s ago")


def test_missing_files_are_a_problem() -> None:
    (one,) = noted(note(file="", ledgers=0, named=(), entries=0))
    assert one.what == (
        "a found that files of its log in /my data are missing 12 s ago, at 2030-03-17T17:46:28Z: "
        "their entries are not restored yet"
    )
    assert one.next.startswith(
        "To see whether the repair is complete: quire autorecovery list. Look at the disk"
    )


def test_missing_files_of_a_read_only_bookie_are_one_problem() -> None:
    lost = {"why": "lost", "directory": "/my data"}
    one = {**bookie("a", "read-only"), "unwritable": [lost]}
    files = note(file="", ledgers=0, named=(), entries=0)

    def found(*notes: FoundDamage) -> list[str]:
        all_found = problems([one, bookie("b")], WELL, now_ms=NOW_MS, damage={"a": notes})
        return [each.what for each in all_found if each.bookies == ("a",)]

    (only,) = found(files)
    assert "a part of its data in /my data is lost" in only
    (_, repaired) = found(replace(files, repaired_ms=NOW_MS))
    assert repaired.endswith("their entries are restored")
    (_, damaged) = found(files, note())
    assert damaged.startswith("a found damage in /my data/log/01.seg")


def test_several_damaged_files_are_one_problem_with_missing_entries_first() -> None:
    old = note(directory="/b", found_ms=NOW_MS - 60_000)
    (one,) = noted(note(repaired_ms=NOW_MS), old)
    assert one.what == "a found damage in 2 places, the last time 12 s ago, at 2030-03-17T17:46:28Z"
    first, second = one.items
    assert first.startswith("damage in /b/log/01.seg 60 s ago")
    assert second.endswith("were restored 12 s later")
    assert "-T /b)" in one.next


def test_damage_notes_are_reported_without_metrics() -> None:
    reported = {**bookie("a"), "damaged": {"segments": 1, "ledgers": 1}, "directories": ()}
    found = problems([reported, bookie("b")], WELL, now_ms=NOW_MS, damage={"a": (note(),)})
    (one,) = [one for one in found if one.bookies == ("a",)]
    assert "found damage in" in one.what
