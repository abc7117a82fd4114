"""`quire bookie disk replace` and `remove`: refusals, output, and starts after an interruption."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quire.bookie.directories.identity import COOKIE_FILE, cookie_of, make_known
from quire.bookie.directories.lost_directory import (
    DirectoryContent,
    KnownBookie,
    check_successor,
    known_bookie,
    remove_directory,
    replace_directory,
)
from quire.cli.main import cli
from quire.codec.metadata.cookie import Cookie, decode, encode
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.wire.v2 import Code
from quire.errors import CookieError, StorageError
from quire.metadata.bookies.directories import read_directories
from quire.metadata.interface import MetadataStore
from quire.storage.directory import read_small_file, write_small_file
from quire.storage.disk import RealDisk
from quire_simulator.machine.disk import SimDisk
from tests.support.bookies.bookie import memory_metadata
from tests.support.bookies.lost_directory import Place, lossy


def lose(place: Place, name: str) -> tuple[int, int]:
    """The directory's contents are gone; the ledger that was in it, and the other one."""
    shutil.rmtree(place.path(name))
    left = "one" if name == "two" else "two"
    answers = place.codes(left, name)
    (gone,) = [one for one in (1, 2) if answers[one] != Code.OK]
    return gone, 3 - gone


@pytest.mark.parametrize("new", ["two", "three"])
def test_the_ledgers_of_a_lost_directory_are_unknown_and_not_absent(place: Place, new: str) -> None:
    gone, here = lose(place, "two")
    (place.root / new).mkdir()
    words = ("b", "two", *(["three"] if new == "three" else []))
    before = place.state()
    planned = json.loads(place.run("replace", *words, "--dry-run", "--json").stdout)
    assert place.state() == before
    done = json.loads(place.run("replace", *words, "--json").stdout)
    assert planned == {**done, "dry_run": True}
    assert done["directory"] == place.path(new)
    assert done["loss"]["ledgers"] == {"count": 1, "ledger_ids": [gone]}
    assert done["loss"]["only_here"]["count"] == done["loss"]["open"]["count"] == 1
    assert place.listed() == ["one", new]
    again = place.run("replace", *words)
    assert (again.exit_code, "already" in again.stdout) == (0, True)
    for _ in range(2):  # no start takes the empty directory for all that there was
        assert place.codes("one", new) == lossy(here, gone)


def test_a_bookie_can_replace_its_only_directory(place: Place) -> None:
    """A bookie that lost its only directory answers that everything is unknown."""
    segments = (Segment(0, ("c",)),)

    async def begin(store: MetadataStore) -> None:
        await store.create_ledger(LedgerMetadata(1, 1, 1, segments), 3)

    place.in_store(begin)
    for ledger_id in (1, 2):
        place.in_store(partial(_delete, ledger_id))
    assert place.run("remove", "b", "two").exit_code == 0
    assert place.codes("one")[77] == Code.NO_LEDGER
    shutil.rmtree(place.path("one"))
    (place.root / "one").mkdir()
    with pytest.raises(CookieError, match="its data is gone") as failed:
        place.codes("one")
    (command,) = re.findall(r"`quire (bookie disk replace [^`]*)`", failed.value.remedy)
    assert CliRunner().invoke(cli, shlex.split(command)).exit_code == 0
    assert set(place.codes("one").values()) == {Code.UNKNOWN_LEDGER_STATE}


async def _delete(ledger_id: int, store: MetadataStore) -> None:
    await store.delete_ledger(ledger_id)


def test_an_intact_directory_is_not_replaced(place: Place) -> None:
    (place.root / "three").mkdir()
    for words in (("b", "two"), ("b", "two", "three")):
        place.refused("replace", *words, says="holds a log that can be read", status=1)
    (place.root / "two" / COOKIE_FILE).unlink()  # that can be written again
    place.refused("replace", "b", "two", says="it is not lost", status=1)


def test_an_unreadable_directory_is_replaced_by_another_and_not_overwritten(place: Place) -> None:
    """Another directory takes its place, and the unreadable one is not overwritten."""
    (place.root / "two" / "current" / "DIRECTORY").write_text("rot")
    (place.root / "three").mkdir()
    place.refused("replace", "b", "two", says="data that cannot be read", status=1)
    assert place.run("replace", "b", "two", "three").exit_code == 0
    assert place.listed() == ["one", "three"]
    assert (place.root / "two" / "current" / "DIRECTORY").read_text() == "rot"
    with pytest.raises(StorageError, match="cannot be used"):
        place.codes("one", "three", "two")


def test_mistaken_arguments_of_replace_are_refused(place: Place, tmp_path: Path) -> None:
    lose(place, "two")
    place.refused(
        "replace",
        "b",
        "three",
        says=f"does not have the directory {place.path('three')}; nothing was changed",
    )
    place.refused(
        "replace", "b", "two", says="does not exist; nothing was changed. Mount the new disk"
    )
    place.refused("replace", "b", "two", "one", says="already, so it cannot replace another one")
    assert place.run("replace", "c", "two").exit_code == 1
    other = tmp_path / "four"
    other.mkdir()
    (other / "letter.txt").write_text("Dear reader")
    done = place.run("replace", "b", "two", "four")
    assert (done.exit_code, "is not empty (letter.txt)" in done.stderr) == (1, True)
    (place.root / "two").mkdir()
    disk = RealDisk(place.path("one"))
    disk.lock()
    place.refused("replace", "b", "two", says="in use by a running bookie", status=1)
    disk.close()
    (place.root / "one").rename(place.root / "kept")
    place.refused("replace", "b", "two", says="none of the other directories of bookie b")


def test_the_directory_of_another_bookie_does_not_count_as_empty(
    place: Place, tmp_path: Path
) -> None:
    lose(place, "two")
    (place.root / "two" / "current").mkdir(parents=True)
    instance = place.in_store(lambda store: store.instance_id())
    stranger = Cookie.of("c", ["/x"], ["/x"], instance)
    (place.root / "two" / COOKIE_FILE).write_bytes(encode(stranger))
    place.refused("replace", "b", "two", says="DIRECTORY is lost", status=1)
    (place.root / "two" / "current" / "DIRECTORY").write_text(
        f"format: 1\ndirectory: {'ab' * 16}\nlog: none\n"
    )
    place.refused("replace", "b", "two", says="belongs to bookie c", status=1)


class Cut(Exception):
    """The machine stops."""


class CutDisk(RealDisk):
    """A disk that permits only this number of name changes."""

    def __init__(self, path: str, changes: int) -> None:
        super().__init__(path)
        self.left = changes

    def rename(self, old: str, new: str) -> None:
        if not self.left:
            raise Cut
        self.left -= 1
        super().rename(old, new)


@pytest.mark.parametrize(
    ("new", "changes"), [("two", 0), ("two", 1), ("two", 2), ("three", 1), ("three", 3)]
)
def test_a_replacement_interrupted_at_any_step_can_be_continued(
    place: Place, new: str, changes: int
) -> None:
    """The lost ledger is never denied, and the same command continues from there."""
    gone, here = lose(place, "two")
    (place.root / new).mkdir()
    words = ("b", "two", *(["three"] if new == "three" else []))

    async def cut_off(store: MetadataStore) -> None:
        disk = CutDisk(place.path(new), changes)
        holder = await known_bookie(store, "b")
        if changes == 3:  # all but the cluster's

            async def never(*_: Any) -> None:
                raise Cut

            store.write_cookie = never  # type: ignore[method-assign, assignment]
        with suppress(Cut):
            await replace_directory(
                store, holder, place.path("two"), disk, lambda size: bytes(size), {}, 1_000
            )

    place.in_store(cut_off)
    answers = place.codes("one", "two")
    assert answers in (lossy(here, gone), {here: Code.OK, gone: Code.IO_ERROR, 77: Code.IO_ERROR})
    (place.root / "two").mkdir(exist_ok=True)
    assert place.run("replace", *words).exit_code == 0
    assert place.codes("one", new) == lossy(here, gone)


OLD_COOKIE = b"2\n/a\n"


async def _spoil(store: MetadataStore) -> None:
    await store.write_cookie("b", OLD_COOKIE, (await store.read_cookie("b")).version)


def test_a_start_with_an_undecodable_cluster_cookie_is_refused_with_a_remedy(place: Place) -> None:
    """The error names the bookie and the cluster, and its remedy works."""
    place.in_store(_spoil)
    create = ("bookie", "cookie", "create", "b", "--dir", place.path("one"), "--metadata")
    refused = CliRunner().invoke(cli, [*create, place.uri])
    assert f"bookie b in the cluster at {place.uri} cannot be decoded" in refused.stderr
    with pytest.raises(CookieError) as failed:
        place.codes("one", "two")
    assert str(failed.value).startswith(
        f"the cookie of bookie b in the cluster at {place.uri} cannot be decoded: "
    )
    (command,) = re.findall(r"`quire (bookie cookie update [^`]*)`", failed.value.remedy)
    assert CliRunner().invoke(cli, shlex.split(command)).exit_code == 0
    assert place.codes("one", "two") == {1: Code.OK, 2: Code.OK, 77: Code.NO_LEDGER}


@pytest.mark.parametrize("words", [("replace", "b", "two"), ("remove", "b", "two")])
def test_replace_and_remove_refuse_an_undecodable_cluster_cookie(
    place: Place, words: tuple[str, ...]
) -> None:
    """The error names the bookie and the cluster, and its remedy works."""
    gone, here = lose(place, "two")
    (place.root / "two").mkdir()
    place.in_store(_spoil)
    refused = place.run(*words)
    assert refused.exit_code == 1
    assert f"bookie b in the cluster at {place.uri} cannot be decoded" in refused.stderr
    (command,) = re.findall(r"`quire (bookie cookie update [^`]*)`", refused.stderr)
    command = command.replace("DIR", place.path("one"))
    assert CliRunner().invoke(cli, shlex.split(command)).exit_code == 0
    assert place.listed() == ["one", "two"]
    assert place.run("replace", "b", "two").exit_code == 0
    assert place.codes("one", "two") == lossy(here, gone)


def test_replace_refuses_the_cluster_cookie_of_an_apache_bookie(place: Place) -> None:
    """The remedy does not lead an Apache bookie to lose its journal directories.

    Its command works for a bookie of Quire.
    """
    gone, here = lose(place, "two")
    (place.root / "two").mkdir()

    async def write(store: MetadataStore) -> None:
        found = await store.read_cookie("b")
        known = replace(decode(found.value), journal_dirs="/journal")
        await store.write_cookie("b", encode(known), found.version)

    place.in_store(write)
    refused = place.run("replace", "b", "two")
    assert refused.exit_code == 1
    assert "is not that of a bookie of Quire" in refused.stderr
    assert "If it is a bookie of Apache, use Apache's tools" in refused.stderr
    (command,) = re.findall(r"`quire (bookie cookie update [^`]*)`", refused.stderr)
    command = command.replace("DIR", place.path("one"))
    assert CliRunner().invoke(cli, shlex.split(command)).exit_code == 0
    assert place.run("replace", "b", "two").exit_code == 0
    assert place.codes("one", "two") == lossy(here, gone)


# -- remove -----------------------------------------------------------------------------------


def test_a_directory_can_be_removed_once_no_ledger_needs_it(place: Place) -> None:
    gone, here = lose(place, "two")
    refusal = place.refused("remove", "b", "two", says=f"is not in its other directories: {gone};")
    assert "decommission b --keep-cookie" in refusal
    place.in_store(partial(_delete, gone))
    before = place.state()
    assert place.run("remove", "b", "two", "--dry-run").exit_code == 0
    assert place.state() == before
    done = json.loads(place.run("remove", "b", "two", "--json").stdout)
    assert done["directories"] == [place.path("one")]
    place.refused("remove", "b", "two", says="does not have the directory")
    place.refused("remove", "b", "one", says="has no other directory")
    assert place.codes("one") == {here: Code.OK, gone: Code.NO_LEDGER, 77: Code.NO_LEDGER}


def test_no_directory_is_removed_while_another_is_unreadable(place: Place) -> None:
    (place.root / "two" / "current" / "DIRECTORY").write_text("rot")
    place.refused("remove", "b", "one", says="none of the other directories")


# -- the order of writes, and what may be a successor --------------------------------------------


async def test_removing_a_directory_updates_the_cluster_cookie_last() -> None:
    """A start compares each directory with the cluster, so the remaining ones are updated first."""
    metadata = memory_metadata()
    await metadata.initialise()
    disks = [SimDisk(random.Random(number), f"d{number}") for number in range(3)]
    paths = [disk.path for disk in disks]
    former = cookie_of("b", paths, await metadata.instance_id())
    for disk in disks:
        write_small_file(disk, COOKIE_FILE, encode(former))
    version = await metadata.write_cookie("b", encode(former), None)
    holder = KnownBookie("b", await metadata.instance_id(), tuple(paths), version)
    left, real, known = holder.cookie(paths[1:]), metadata.write_cookie, list[bytes | None]()

    async def write_cookie(bookie_id: str, cookie: bytes, version: int | None) -> int:
        known.extend(read_small_file(disk, COOKIE_FILE) for disk in disks[1:])
        return await real(bookie_id, cookie, version)

    metadata.write_cookie = write_cookie  # type: ignore[method-assign]
    await remove_directory(metadata, holder, paths[0], disks[1:], {}, 0)
    assert known == [encode(left)] * 2
    assert (await metadata.read_cookie("b")).value == encode(left)


async def test_a_lost_bookie_is_marked_before_it_has_a_cookie() -> None:
    """With a cookie and without the mark, an empty directory would count as a new one."""
    metadata = memory_metadata()
    await metadata.initialise()
    named = LedgerMetadata(1, 1, 1, (Segment(0, ("b",)),)).with_close(3, 30)
    await metadata.create_ledger(named)
    cookie = cookie_of("b", ["/one"], await metadata.instance_id())
    real, marks = metadata.write_cookie, list[str]()

    async def write_cookie(bookie_id: str, cookie: bytes, version: int | None) -> int:
        found = await read_directories(metadata, bookie_id)
        assert found is not None
        marks.append(found.value.marks["0a"].lost)
        return await real(bookie_id, cookie, version)

    metadata.write_cookie = write_cookie  # type: ignore[method-assign]
    await make_known(metadata, cookie, {"/one": "0a"}, 0)
    assert marks == ["is empty, but ledgers name bookie b"]


def test_a_directory_of_another_cluster_is_refused_as_a_replacement() -> None:
    """The other cluster may have a bookie with the same id."""
    holder = KnownBookie("b", "here", ("/one",), 0)
    for bookie, cluster, fits in (("b", "here", True), ("b", "there", False), ("c", "here", False)):
        found = DirectoryContent(cookie=cookie_of(bookie, ["/new"], cluster))
        if fits:
            check_successor(holder, "/new", found)
        else:
            with pytest.raises(
                CookieError, match=f"belongs to bookie {bookie} of cluster {cluster}"
            ):
                check_successor(holder, "/new", found)
    check_successor(holder, "/new", DirectoryContent())
