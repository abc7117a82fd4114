"""A former data directory of a bookie comes back. Nothing of it is served."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quire.bookie.directories.identity import COOKIE_FILE
from quire.cli.main import cli
from quire.codec.wire.v2 import Code
from quire.errors import CookieError
from quire.metadata.bookies.directories import (
    GIVEN_UP_MAX,
    BookieDirectories,
    directories_path,
    read_directories,
    write_directories,
)
from quire.metadata.bookies.nodes import delete_node
from quire.metadata.interface import MetadataStore
from quire.storage.directory import Identity, begin_lost
from quire.storage.disk import RealDisk
from tests.support.bookies.lost_directory import Place, lossy


def id_of(place: Place, name: str) -> str:
    path = place.root / name / "current" / "DIRECTORY"
    return Identity.decode(path.read_bytes(), str(path)).name


async def forget(store: MetadataStore) -> None:
    """Make the cluster as one whose bookies are of an earlier version."""
    await delete_node(store, directories_path(store.uri, "b"))


def known(place: Place) -> BookieDirectories:
    async def read(store: MetadataStore) -> BookieDirectories:
        found = await read_directories(store, "b")
        assert found is not None
        return found.value

    return place.in_store(read)


def swap(place: Place, name: str, other: str) -> None:
    """Mount another disk, and move the former contents to `other`."""
    between = place.root / "between"
    (place.root / name).rename(between)
    if (place.root / other).exists():
        (place.root / other).rename(place.root / name)
    between.rename(place.root / other)


def homes(place: Place) -> tuple[int, int]:
    """The ledger in directory two, and the one in directory one."""
    swap(place, "two", "away")
    answers = place.codes("one", "two")
    swap(place, "away", "two")
    (gone,) = [one for one in (1, 2) if answers[one] != Code.OK]
    return gone, 3 - gone


def replaced(place: Place, *new: str) -> tuple[str, str]:
    """Replace directory two, and keep the lost disk unmounted as "old".

    Return the ids of the old and the new directory.
    """
    old = id_of(place, "two")
    swap(place, "two", "old")
    (place.root / (new[0] if new else "two")).mkdir()
    assert place.run("replace", "b", "two", *new).exit_code == 0
    return old, id_of(place, new[0] if new else "two")


def refused(place: Place, *names: str, says: tuple[str, ...]) -> str:
    before = place.state()
    with pytest.raises(CookieError) as failed:
        place.codes(*names)
    assert place.state() == before
    text = str(failed.value)
    for one in says:
        assert one in text, text
    return text


def cookie(place: Place, verb: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["bookie", "cookie", verb, *words, "--metadata", place.uri])


def test_a_replaced_disk_is_refused_at_the_same_path(place: Place) -> None:
    gone, here = homes(place)
    old, new = replaced(place)
    assert place.codes("one", "two") == lossy(here, gone)
    swap(place, "two", "new")
    shutil.copytree(place.root / "old", place.root / "two")
    two = place.path("two")
    says = (f"{two} holds directory {old} of bookie b", "given up on 20", f"directory {new} took")
    text = refused(place, "one", "two", says=(*says, f"Put directory {new} back at {two}"))
    # As the message recommends: mount the new directory again, ...
    swap(place, "two", "old_again")
    swap(place, "new", "two")
    assert place.codes("one", "two") == lossy(here, gone)
    # ... or, with that lost as well, an empty one once more.
    shutil.rmtree(place.path("two"))
    shutil.copytree(place.root / "old", place.root / "two")
    replace, erase = re.findall(r"`quire (bookie [^`]*)`", text)
    assert CliRunner().invoke(cli, [*shlex.split(replace)]).exit_code == 1  # it is not empty
    assert CliRunner().invoke(cli, [*shlex.split(erase), "--yes"]).exit_code == 0
    assert CliRunner().invoke(cli, shlex.split(replace)).exit_code == 0
    assert place.codes("one", "two") == lossy(here, gone)
    last = id_of(place, "two")
    left = {one.directory_id: one.successor for one in known(place).given_up}
    assert left == {old: new, new: last}
    # The directory that it would restore is now the last one.
    shutil.rmtree(place.path("two"))
    shutil.copytree(place.root / "old", place.root / "two")
    says = (f"directory {new} took", f"Put directory {last} back at {two}")
    refused(place, "one", "two", says=says)


def test_a_replaced_disk_is_refused_beside_the_new_one(place: Place) -> None:
    old, new = replaced(place, "three")
    place.codes("one", "three")
    swap(place, "old", "two")
    for names in (("one", "two"), ("one", "three", "two"), ("two",)):
        says = (old, f"directory {new} took", f"Start the bookie with directory {new}, at ")
        assert place.path("three") in refused(place, *names, says=says)
    # Not with the cookies written over those of the one in use either.
    before = place.state()
    done = cookie(place, "update", "--dir", place.path("one"), "--dir", place.path("two"))
    assert (done.exit_code, f"directory {new} took its place" in done.stderr) == (1, True)
    assert place.state() == before
    shown = cookie(place, "show", "--dir", place.path("two"))
    assert (shown.exit_code, f"directory {new} took its place" in shown.stderr) == (1, True)
    # An operator who insists gets a directory that has lost what was stored since.
    forced = ("--dir", place.path("one"), "--dir", place.path("two"), "--force")
    assert cookie(place, "update", *forced).exit_code == 0
    assert place.codes("one", "two")[77] == Code.UNKNOWN_LEDGER_STATE
    assert place.codes("one", "two")[77] == Code.UNKNOWN_LEDGER_STATE
    assert known(place).ids == {place.path("one"): id_of(place, "one"), place.path("two"): old}
    assert [one.directory_id for one in known(place).given_up] == [new]


def test_a_removed_directory_is_refused(place: Place) -> None:
    for ledger_id in (1, 2):
        place.in_store(partial(_delete, ledger_id))
    old = id_of(place, "two")
    assert place.run("remove", "b", "two").exit_code == 0
    place.codes("one")
    says = (f"directory {old} of bookie b", "removed from that bookie")
    refused(place, "one", "two", says=(*says, "Start the bookie without this directory"))
    refused(place, "two", says=(*says, "Start the bookie without this directory"))
    (place.root / "one").rename(place.root / "kept")
    (place.root / "two").rename(place.root / "one")
    back = f"Put directory {id_of(place, 'kept')} back at {place.path('one')}"
    refused(place, "one", says=(*says, back))


async def _delete(ledger_id: int, store: MetadataStore) -> None:
    await store.delete_ledger(ledger_id)


def test_a_replaced_only_directory_is_refused(place: Place) -> None:
    """Nothing on the machine shows the replacement, but the cluster does."""
    for ledger_id in (1, 2):
        place.in_store(partial(_delete, ledger_id))
    assert place.run("remove", "b", "two").exit_code == 0
    place.codes("one")
    swap(place, "one", "old")
    (place.root / "one").mkdir()
    assert place.run("replace", "b", "one").exit_code == 0
    assert set(place.codes("one").values()) == {Code.UNKNOWN_LEDGER_STATE}
    swap(place, "old", "one")
    refused(place, "one", says=(id_of(place, "one"), f"{id_of(place, 'old')} took its place"))


def test_the_directory_of_a_former_bookie_of_the_same_id_is_refused(place: Place) -> None:
    """The new bookie does not have its predecessor's ledgers, although the cookies are equal.

    It does not deny the predecessor's entries.
    """
    swap(place, "one", "old")
    shutil.rmtree(place.path("two"))
    place.in_store(lambda store: store.delete_cookie("b"))
    assert set(place.codes("one").values()) == {Code.UNKNOWN_LEDGER_STATE}
    assert known(place).ids == {place.path("one"): id_of(place, "one")}
    assert known(place).left(id_of(place, "old")) is not None
    (place.root / "old" / COOKIE_FILE).write_bytes((place.root / "one" / COOKIE_FILE).read_bytes())
    swap(place, "one", "old")
    refused(place, "one", says=(f"directory {id_of(place, 'old')} took its place",))


def test_other_directories_that_are_old_count_as_lost(place: Place) -> None:
    """They count as lost for a replacement's losses, and for whether a directory may be removed."""
    _, new = replaced(place)
    swap(place, "two", "new")
    swap(place, "old", "two")
    (place.root / "three").mkdir()
    done = place.run("remove", "b", "one")
    assert (done.exit_code, "none of the other directories" in done.stderr) == (2, True)
    # No readable directory is given up by mistake, but an old one does not belong to the bookie.
    done = place.run("replace", "b", "two", "three")
    assert done.exit_code == 0, done.stderr
    three = id_of(place, "three")
    left = {one.directory_id: one.successor for one in known(place).given_up}
    assert left == {id_of(place, "two"): three, new: three}


def test_a_replacement_that_was_replaced_while_empty_may_be_used_again(place: Place) -> None:
    gone, here = homes(place)
    _, first = replaced(place)
    swap(place, "two", "first")
    (place.root / "two").mkdir()
    assert place.run("replace", "b", "two").exit_code == 0
    swap(place, "two", "first")
    refused(place, "one", "two", says=(first, "given up on"))
    again = place.run("replace", "b", "two")
    assert (again.exit_code, "already" in again.stdout) == (0, False)
    assert place.codes("one", "two") == lossy(here, gone)
    assert known(place).left(first) is None


def test_the_directory_ids_of_a_bookie_of_an_earlier_version_are_recorded_at_its_start(
    place: Place,
) -> None:
    """Its directory ids are unknown until its next start, which records the readable ones."""
    ids = {place.path(one): id_of(place, one) for one in ("one", "two")}
    assert known(place).ids == ids
    place.in_store(forget)
    swap(place, "two", "away")
    place.codes("one", "two")
    assert known(place).ids == {place.path("one"): ids[place.path("one")]}
    swap(place, "away", "two")
    place.codes("one", "two")
    assert known(place).ids == ids
    place.in_store(forget)
    old, new = replaced(place)
    assert known(place).ids[place.path("one")] == ids[place.path("one")]
    swap(place, "two", "new")
    swap(place, "old", "two")
    refused(place, "one", "two", says=(old, f"but the bookie has directory {new} there"))


def test_two_disks_can_be_exchanged_and_are_counted_once(place: Place) -> None:
    swap(place, "one", "two")
    assert place.codes("one", "two") == {1: Code.OK, 2: Code.OK, 77: Code.NO_LEDGER}
    assert known(place).ids[place.path("one")] == id_of(place, "one")
    swap(place, "two", "away")
    shutil.copytree(place.root / "one", place.root / "two")
    refused(
        place, "one", "two", says=("hold the same data directory", id_of(place, "one"), "a copy")
    )
    # While one is away, none is forgotten.
    shutil.rmtree(place.path("two"))
    swap(place, "one", "two")
    before = known(place)
    place.codes("one", "two")
    assert known(place).ids == before.ids
    assert known(place).marks.keys() == before.marks.keys()
    swap(place, "away", "one")
    assert place.codes("one", "two")[77] == Code.NO_LEDGER


def test_a_directory_can_be_added_where_an_erased_one_was_begun(place: Place) -> None:
    """A third directory is missing, so not everything is known. The current directory is the new
    one.
    """

    async def note(store: MetadataStore) -> None:
        found = await read_directories(store, "b")
        assert found is not None
        ids = {**found.value.ids, place.path("three"): "ab" * 16}
        await write_directories(store, "b", found.value.having(ids), found.version)

    place.in_store(note)
    swap(place, "two", "away")
    place.codes("one", "two", "three")
    assert known(place).ids[place.path("three")] == id_of(place, "three")
    swap(place, "away", "two")
    assert place.codes("one", "two", "three")[77] == Code.NO_LEDGER


def test_a_check_of_the_disk_reports_an_old_directory(place: Place) -> None:
    def check(*words: str) -> Result:
        command = ["bookie", "disk", "check", place.path("two"), "--json", *words]
        return CliRunner().invoke(cli, command, env={"QUIRE_METADATA": ""})

    asked = ("--metadata", place.uri)
    for words in ((), asked):
        done = check(*words)
        assert (done.exit_code, json.loads(done.stdout.splitlines()[-1])["old"]) == (0, None)
    _, new = replaced(place)
    swap(place, "two", "new")
    swap(place, "old", "two")
    assert check().exit_code == 0
    done = check(*asked)
    total = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, total["ok"], total["problems"]) == (1, False, [])
    assert f"directory {new} took its place" in total["old"]
    # A disk can be checked without its cluster.
    done = check("--metadata", f"sqlite:///{place.root}/none/cluster.db")
    assert (done.exit_code, "the cluster did not say" in done.stderr) == (0, True)


def test_the_ids_of_the_newest_former_directories_are_kept(tmp_path: Path) -> None:
    found = BookieDirectories({"/a": "0"})
    for number in range(GIVEN_UP_MAX + 10):
        name = str(number + 1)
        found = found.without("/a", [""], name, number).having({"/a": name})
    assert [one.directory_id for one in found.given_up] == [
        str(number) for number in range(10, GIVEN_UP_MAX + 10)
    ]
    assert BookieDirectories.decode(found.encode()) == found
    for bad in (b"[]", b"{}", b'{"directories": 1, "given_up": []}', b"x"):
        with pytest.raises(ValueError, match="not the record of a bookie's"):
            BookieDirectories.decode(bad)
    name = begin_lost(RealDisk(tmp_path / "new"), lambda size: b"\1" * size).name
    assert name == "01" * 16


def test_a_directory_left_out_by_force_is_not_denied(place: Place) -> None:
    gone, here = homes(place)
    two = id_of(place, "two")
    one = ("--dir", place.path("one"))
    assert cookie(place, "update", *one).exit_code == 1
    assert cookie(place, "update", *one, "--force").exit_code == 0
    assert [each.directory_id for each in known(place).given_up] == [two]
    assert place.codes("one") == lossy(here, gone)
    # It does not come back as if it were up to date, not even beside the other one.
    refused(place, "one", "two", says=(two, "which was removed from that bookie"))
