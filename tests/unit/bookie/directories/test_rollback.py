"""Data directories that went back in time, on real disks, with commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quire.bookie.directories.rollback import expected_of, why_behind
from quire.bookie.metrics import bookie_metrics
from quire.bookie.server import Bookie
from quire.cli.main import cli
from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import Code
from quire.errors import StorageError
from quire.metadata.bookies.directories import (
    BookieDirectories,
    LogMark,
    directories_path,
    read_directories,
)
from quire.metadata.bookies.nodes import delete_node
from quire.metadata.interface import MetadataStore
from quire.storage.directories import LedgerDirectories
from quire.storage.disk import RealDisk
from quire.storage.recovery.incarnation import (
    INCARNATION_NAME,
    ExpectedLog,
    Incarnation,
    LogPosition,
    read_incarnation,
    write_incarnation,
)
from tests.support.bookies.bookie import peer_of
from tests.support.bookies.lost_directory import KEY, Place, entry

WHOLE = {1: Code.OK, 2: Code.OK, 77: Code.NO_LEDGER}
UNKNOWN = dict.fromkeys((1, 2, 77), Code.UNKNOWN_LEDGER_STATE)


def restore(place: Place, name: str, backup: str) -> None:
    shutil.rmtree(place.path(name))
    shutil.copytree(place.path(backup), place.path(name))


def back_up(place: Place, name: str, backup: str) -> None:
    shutil.copytree(place.path(name), place.path(backup))


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), env={"QUIRE_METADATA": ""})


def check(place: Place, name: str) -> tuple[int, str]:
    done = run("bookie", "disk", "check", place.path(name), "--json", "--metadata", place.uri)
    return done.exit_code, json.loads(done.stdout.splitlines()[-1])["old"] or ""


async def forget(store: MetadataStore) -> None:
    await delete_node(store, directories_path(store.uri, "b"))


# -- restored copies ----------------------------------------------------------------------------


def test_an_older_copy_of_one_directory_is_served_and_absence_is_unknown(place: Place) -> None:
    """The older copy and the other directories are served. All other entries are unknown."""
    back_up(place, "two", "backup")
    assert place.codes("one", "two") == WHOLE
    assert check(place, "two") == (0, "")
    restore(place, "two", "backup")
    status, why = check(place, "two")
    assert status == 1
    assert "went back in time: it was started" in why
    told = run("bookie", "disk", "check", place.path("two"), "--metadata", place.uri).stdout
    assert told.endswith("are not damaged, but newer data is missing (see above)\n")
    shown = run("bookie", "cookie", "show", "--dir", place.path("two"), "--metadata", place.uri)
    assert (shown.exit_code, "went back in time" in shown.stderr) == (1, True)
    expected = {1: Code.OK, 2: Code.OK, 77: Code.UNKNOWN_LEDGER_STATE}
    for _ in range(2):  # and the next start does not forget it
        assert place.codes("one", "two") == expected
    assert check(place, "two")[1] == ""


def test_a_directory_that_went_back_is_reported_in_metrics_and_state(place: Place) -> None:
    back_up(place, "two", "backup")
    place.codes("one", "two")
    restore(place, "two", "backup")

    async def look(bookie: Bookie) -> tuple[dict[str, float], str]:
        numbers = {
            metric.name: metric.samples[0].value
            for metric in bookie_metrics(bookie, 0.0)
            if metric.name.startswith("quire_bookie_") and metric.samples
        }
        (two,) = [one for one in bookie.store.directories() if one.path == place.path("two")]
        return numbers, f"{two.state}: {two.reason}"

    numbers, state = place.serve(["one", "two"], look)
    assert numbers["quire_bookie_directories_went_back"] == 1
    assert numbers["quire_bookie_log_position_unreported_seconds"] < 60
    assert state == "read-only: a part of its data is lost"


def test_an_add_after_the_copy_is_noticed_by_the_log_position(place: Place) -> None:
    """Within one incarnation, the position of the log shows it."""
    back_up(place, "one", "first")
    back_up(place, "two", "second")

    async def add(bookie: Bookie) -> None:
        async with peer_of(bookie) as peer:
            for ledger in range(3, 9):
                request = frames.add_request(KEY, entry(ledger))
                assert await peer.ask(request) == frames.add_response(0, ledger, 0)

    place.serve(["one", "two"], add)
    for name, backup in (("one", "first"), ("two", "second")):
        here = read_incarnation(RealDisk(place.path(name)))
        assert here is not None
        restore(place, name, backup)
        write_incarnation(RealDisk(place.path(name)), here)
        status, why = check(place, name)
        assert (status, "went back in time: its" in why) == (1, True)
    assert place.codes("one", "two")[77] == Code.UNKNOWN_LEDGER_STATE


def test_deleted_newest_segments_are_noticed(place: Place) -> None:
    newest = 0
    for name in ("one", "two"):
        segments = sorted(Path(place.path(name), "log").glob("*.seg"))
        newest = max(int(one.stem, 16) for one in segments)
        for one in segments[1:]:
            one.unlink()
        Path(place.path(name), "log", "CLEAN").unlink()
    status, why = check(place, "two")
    assert status == 1
    assert "its newest segment file is 1, but its bookie has reported" in why
    assert newest > 1
    assert place.codes("one", "two")[77] == Code.UNKNOWN_LEDGER_STATE


def test_two_copies_that_were_both_started_are_noticed(place: Place) -> None:
    """The copy was started, and then the original comes back: it lacks what the copy took."""
    back_up(place, "two", "copy")
    place.codes("one", "two")
    restore(place, "two", "copy")
    shutil.rmtree(place.path("copy"))
    place.codes("one", "two")
    back_up(place, "two", "copy")
    place.codes("one", "two")
    restore(place, "two", "copy")
    assert place.codes("one", "two")[77] == Code.UNKNOWN_LEDGER_STATE


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_a_lost_or_damaged_incarnation_makes_absence_unknown(place: Place, damage: str) -> None:
    file = Path(place.path("two"), INCARNATION_NAME)
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes().replace(b"incarnation: ", b"incarnation: 9"))
    status, why = check(place, "two")
    assert (status, INCARNATION_NAME in why) == (1, True)
    assert place.codes("one", "two")[77] == Code.UNKNOWN_LEDGER_STATE


def test_the_first_start_after_an_upgrade_creates_incarnations_and_marks(place: Place) -> None:
    """It has no incarnations, and the cluster has no marks. Its first start creates both."""
    place.in_store(forget)
    for name in ("one", "two"):
        Path(place.path(name), INCARNATION_NAME).unlink()
    for _ in range(2):
        assert place.codes("one", "two") == WHOLE
    for name in ("one", "two"):
        assert read_incarnation(RealDisk(place.path(name))) is not None


def test_a_cluster_restored_from_an_older_backup_makes_nothing_unknown(place: Place) -> None:
    """Its metadata was restored from an older backup: the directories are ahead, and whole."""
    older = Path(place.root / "cluster.db").read_bytes()
    for _ in range(2):
        assert place.codes("one", "two") == WHOLE
    Path(place.root / "cluster.db").write_bytes(older)
    for _ in range(2):
        assert place.codes("one", "two") == WHOLE


def test_a_ledger_that_moved_to_another_directory_is_served_from_there(place: Place) -> None:
    """The older copy lacks the deletion of the ledger. The complete directory counts."""
    ledger_id = next(one for one in (1, 2) if one in ledgers_in(place, "two"))
    back_up(place, "two", "backup")

    async def move(bookie: Bookie) -> None:
        assert isinstance(bookie.store, LedgerDirectories)
        bookie.store.drop_ledgers([ledger_id])
        bookie.store._places[0].store.create_ledger(ledger_id, KEY)
        async with peer_of(bookie) as peer:
            request = frames.add_request(KEY, entry(ledger_id))
            assert await peer.ask(request) == frames.add_response(0, ledger_id, 0)

    place.serve(["one", "two"], move)
    restore(place, "two", "backup")
    expected = {1: Code.OK, 2: Code.OK, 77: Code.UNKNOWN_LEDGER_STATE}
    for _ in range(2):
        assert place.codes("one", "two") == expected
    assert ledger_id in ledgers_in(place, "one")
    assert ledger_id not in ledgers_in(place, "two")


def ledgers_in(place: Place, name: str) -> set[int]:
    async def look(bookie: Bookie) -> set[int]:
        assert isinstance(bookie.store, LedgerDirectories)
        number = ["one", "two"].index(name)
        return set(bookie.store._places[number].store.ledgers)

    return place.serve(["one", "two"], look)


# -- cookies that are removed -------------------------------------------------------------------


def empty(place: Place) -> None:
    for name in ("one", "two"):
        shutil.rmtree(place.path(name))


def delete_cookie(place: Place, *more: str) -> Result:
    return run("bookie", "cookie", "delete", "b", "--yes", "--metadata", place.uri, *more)


def test_ledgers_are_unknown_after_a_cookie_is_deleted_by_force(place: Place) -> None:
    assert delete_cookie(place).exit_code == 2  # ledgers name it
    assert delete_cookie(place, "--force").exit_code == 0
    empty(place)
    for _ in range(2):
        assert place.codes("one", "two") == UNKNOWN
    known = place.in_store(lambda store: read_directories(store, "b"))
    assert known is not None
    assert len(known.value.given_up) == 2


def test_ledgers_are_unknown_after_a_directory_is_formatted_by_force(place: Place) -> None:
    command = ["bookie", "format", "--yes", "--delete-cookie", "--metadata", place.uri]
    command += ["--dir", place.path("one"), "--dir", place.path("two")]
    assert run(*command).exit_code == 2
    assert run(*command, "--force").exit_code == 0
    assert place.codes("one", "two") == UNKNOWN


def test_ledgers_are_unknown_after_a_bookie_is_created_again(place: Place) -> None:
    """`quire bookie init` does not make it a new bookie either."""
    assert delete_cookie(place, "--force").exit_code == 0
    empty(place)
    made = run("bookie", "init", "--dir", place.path("one"), "--bookie-id", "b",
               "--metadata", place.uri)  # fmt: skip
    assert made.exit_code == 0, made.output
    assert place.codes("one") == UNKNOWN


def test_a_bookie_that_no_ledger_names_starts_as_a_new_one(place: Place) -> None:
    async def delete(store: MetadataStore) -> None:
        for ledger_id in (1, 2):
            await store.delete_ledger(ledger_id)

    place.in_store(delete)
    assert delete_cookie(place).exit_code == 0
    assert place.in_store(lambda store: read_directories(store, "b")) is None
    empty(place)
    assert set(place.codes("one", "two").values()) == {Code.NO_LEDGER}


def test_ledgers_are_unknown_after_the_cookie_of_an_earlier_version_is_deleted(
    place: Place,
) -> None:
    """The bookie has no record in the cluster, but ledgers name it."""
    assert delete_cookie(place, "--force").exit_code == 0
    place.in_store(forget)
    empty(place)
    for _ in range(2):
        assert place.codes("one") == UNKNOWN


def test_a_start_interrupted_before_the_cookie_is_written_continues_as_lost(place: Place) -> None:
    """The next start continues with the directory as a lost one."""
    assert delete_cookie(place, "--force").exit_code == 0
    empty(place)
    place.codes("one")
    place.in_store(lambda store: store.delete_cookie("b"))
    # Nothing of the log was made durable.
    for file in Path(place.path("one"), "log").iterdir():
        file.unlink()
    Path(place.path("one"), INCARNATION_NAME).unlink()
    identity = Path(place.path("one"), "current", "DIRECTORY")
    identity.write_text(identity.read_text().replace("log: begun", "log: none"))
    assert place.codes("one") == UNKNOWN


# -- marks --------------------------------------------------------------------------------------


def test_the_reasons_against_an_older_directory_are_described() -> None:
    mark = LogMark(3, "aa", 7, 20)
    assert "3 times" in why_behind(mark, None)
    assert "started 2 times" in why_behind(mark, Incarnation(2, "aa"))
    assert "another copy" in why_behind(mark, Incarnation(3, "bb"))
    assert why_behind(mark, Incarnation(3, "aa")) == ""
    assert why_behind(LogMark(3, lost="is empty"), Incarnation(9, "aa")) == "is empty"
    assert expected_of(None, None) == ExpectedLog()
    assert expected_of(mark, Incarnation(4, "cc")) == ExpectedLog()
    expected = expected_of(mark, Incarnation(3, "aa"))
    assert expected.held_against(LogPosition(7, 20)) == ""
    assert expected.held_against(LogPosition(9, 31)) == ""
    assert "segment file is 6" in expected.held_against(LogPosition(6, 20))
    assert "before group 19" in expected.held_against(LogPosition(7, 19))


def test_marks_of_former_directories_are_kept_and_returning_ones_are_lost() -> None:
    made = BookieDirectories({"/a": "0a"}, marks={"0a": LogMark(3, "aa", 7, 20)})
    assert BookieDirectories.decode(made.encode()) == made
    left = made.without("/a", (), "0b", 5).having({"/a": "0b"})
    assert left.marks == made.marks
    back = left.having({"/a": "0a"})
    assert back.marks["0a"].incarnation == 4
    assert back.marks["0a"].lost
    # Records of an earlier version have none.
    old = BookieDirectories.decode(b'{"directories": {"/a": "0a"}, "given_up": []}')
    assert not old.marks


def test_an_incarnation_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    (tmp_path / "current").mkdir()
    assert read_incarnation(disk) is None
    write_incarnation(disk, Incarnation(7, "0f"))
    assert read_incarnation(disk) == Incarnation(7, "0f")
    whole = (tmp_path / INCARNATION_NAME).read_bytes()
    for at in range(len(whole)):
        (tmp_path / INCARNATION_NAME).write_bytes(
            whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        )
        with pytest.raises(StorageError, match=r"INCARNATION, .* cannot be decoded"):
            read_incarnation(disk)
