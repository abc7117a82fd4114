"""`quire bookie disk replace` and `remove`: what they refuse, what they say, and what a bookie is
that starts where one of them was cut off."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from quire.bookie.directories.identity import COOKIE_FILE
from quire.bookie.directories.lost import holder_of, replace_directory
from quire.bookie.server import Bookie
from quire.cli.main import cli
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.cookie import Cookie, decode, encode, split_directories
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import Code
from quire.errors import CookieError, StorageError
from quire.metadata.interface import MetadataStore
from quire.storage.disk import RealDisk
from tests.support.bookies.bookie import SMALL, peer_of, running_bookie
from tests.support.metadata.metadata import in_store

KEY = master_key(b"")
TINY = replace(SMALL, segment_bytes=1024 * 1024)
T = TypeVar("T")


def entry(ledger_id: int) -> bytes:
    return EntryCodec(ledger_id, DigestType.CRC32C, b"").pack(0, -1, 5, b"entry")


class Place:
    """The directories of bookie b, its cluster, and the commands on them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = f"sqlite:///{root}/cluster.db"

    def path(self, name: str) -> str:
        return str(self.root / name)

    def in_store(self, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
        return in_store(self.uri, work)

    def serve(self, names: Sequence[str], work: Callable[[Bookie], Awaitable[T]]) -> T:
        async def run(store: MetadataStore) -> T:
            more = [RealDisk(self.path(one), make=False) for one in names[1:]]
            first = self.root / names[0]
            async with running_bookie(first, TINY, store, bookie_id="b", more=more) as bookie:
                return await work(bookie)

        return self.in_store(run)

    def codes(self, *names: str) -> dict[int, int]:
        """How it answers reads of ledgers 1 and 2, and of one that nobody ever wrote."""

        async def ask(bookie: Bookie) -> dict[int, int]:
            async with peer_of(bookie) as peer:
                return {
                    ledger: frames.RESPONSE.unpack_from(
                        await peer.ask(frames.read_request(ledger, 0))
                    )[2]
                    for ledger in (1, 2, 77)
                }

        return self.serve(names, ask)

    def run(self, verb: str, *words: str) -> Result:
        words = tuple(self.path(one) if one.isalpha() and len(one) > 1 else one for one in words)
        command = ("bookie", "disk", verb, *words, "--metadata", self.uri)
        return CliRunner().invoke(cli, list(command))

    def refused(self, verb: str, *words: str, says: str, status: int = 2) -> str:
        before = self.state()
        done = self.run(verb, *words)
        assert (done.exit_code, done.stdout) == (status, "")
        assert says in done.stderr
        assert "nothing was changed" in done.stderr
        assert self.state() == before
        return done.stderr

    def state(self) -> dict[str, bytes]:
        """The cookies, and what each directory says of itself."""
        files = [*self.root.glob("*/current/*")]
        found = {str(one.relative_to(self.root)): one.read_bytes() for one in files}
        with suppress(CookieError):
            found["cluster"] = self.in_store(lambda store: store.read_cookie("b")).value
        return found

    def listed(self) -> list[str]:
        known = decode(self.in_store(lambda store: store.read_cookie("b")).value)
        return [Path(one).name for one in split_directories(known.ledger_dirs)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Bookie b has ledgers 1 and 2, one in each of two directories."""
    place = Place(tmp_path)

    async def fill(bookie: Bookie) -> None:
        async with peer_of(bookie) as peer:
            for ledger in (1, 2):
                request = frames.add_request(KEY, entry(ledger))
                assert await peer.ask(request) == frames.add_response(0, ledger, 0)

    async def name(store: MetadataStore) -> None:
        for ledger_id in (1, 2):
            segments = (Segment(0, ("b",)),)
            await store.create_ledger(LedgerMetadata(1, 1, 1, segments), ledger_id)

    place.serve(["one", "two"], fill)
    place.in_store(name)
    assert place.codes("one", "two") == {1: Code.OK, 2: Code.OK, 77: Code.NO_LEDGER}
    return place


def lose(place: Place, name: str) -> tuple[int, int]:
    """The directory's contents are gone; the ledger that was in it, and the other one."""
    shutil.rmtree(place.path(name))
    left = "one" if name == "two" else "two"
    answers = place.codes(left, name)
    (gone,) = [one for one in (1, 2) if answers[one] != Code.OK]
    return gone, 3 - gone


def lossy(here: int, *gone: int) -> dict[int, int]:
    return {here: Code.OK, **dict.fromkeys((*gone, 77), Code.UNKNOWN_LEDGER_STATE)}


@pytest.mark.parametrize("new", ["two", "three"])
def test_what_was_in_it_is_unknown_and_not_absent(place: Place, new: str) -> None:
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


def test_the_only_directory(place: Place) -> None:
    """A bookie that lost everything comes back as one that lost everything."""
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


def test_a_directory_that_is_well_is_left_alone(place: Place) -> None:
    (place.root / "three").mkdir()
    for words in (("b", "two"), ("b", "two", "three")):
        place.refused("replace", *words, says="holds a log that can be read", status=1)
    (place.root / "two" / COOKIE_FILE).unlink()  # that can be written again
    place.refused("replace", "b", "two", says="it is not lost", status=1)


def test_a_directory_that_cannot_be_read(place: Place) -> None:
    """Another takes its place; it is not written over."""
    (place.root / "two" / "current" / "DIRECTORY").write_text("rot")
    (place.root / "three").mkdir()
    place.refused("replace", "b", "two", says="what cannot be read", status=1)
    assert place.run("replace", "b", "two", "three").exit_code == 0
    assert place.listed() == ["one", "three"]
    assert (place.root / "two" / "current" / "DIRECTORY").read_text() == "rot"
    with pytest.raises(StorageError, match="cannot be read"):
        place.codes("one", "three", "two")


def test_mistakes(place: Place, tmp_path: Path) -> None:
    lose(place, "two")
    place.refused("replace", "b", "three", says=f"no directory {place.path('three')}, but")
    place.refused("replace", "b", "two", says="does not exist: mount the new disk")
    place.refused("replace", "b", "two", "one", says="already: name an empty directory")
    assert place.run("replace", "c", "two").exit_code == 1
    other = tmp_path / "four"
    other.mkdir()
    (other / "letter.txt").write_text("Dear reader")
    done = place.run("replace", "b", "two", "four")
    assert (done.exit_code, "is not empty (letter.txt)" in done.stderr) == (1, True)
    (place.root / "two").mkdir()
    disk = RealDisk(place.path("one"))
    disk.lock()
    place.refused("replace", "b", "two", says="a bookie runs on", status=1)
    disk.close()
    (place.root / "one").rename(place.root / "kept")
    place.refused("replace", "b", "two", says="none of the other directories of bookie b")


def test_another_bookie_s_directory_is_no_empty_one(place: Place, tmp_path: Path) -> None:
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
    """Makes no more than so many changes of a name."""

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
def test_cut_off_at_every_step(place: Place, new: str, changes: int) -> None:
    """Nobody says of the lost ledger that there is none; the same command goes on from there."""
    gone, here = lose(place, "two")
    (place.root / new).mkdir()
    words = ("b", "two", *(["three"] if new == "three" else []))

    async def cut_off(store: MetadataStore) -> None:
        disk = CutDisk(place.path(new), changes)
        holder = await holder_of(store, "b")
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


# -- remove -----------------------------------------------------------------------------------


def test_a_directory_goes_when_nothing_needs_it(place: Place) -> None:
    gone, here = lose(place, "two")
    refusal = place.refused("remove", "b", "two", says=f"are not in its other directories: {gone};")
    assert "decommission b --keep-cookie" in refusal
    place.in_store(partial(_delete, gone))
    before = place.state()
    assert place.run("remove", "b", "two", "--dry-run").exit_code == 0
    assert place.state() == before
    done = json.loads(place.run("remove", "b", "two", "--json").stdout)
    assert done["directories"] == [place.path("one")]
    place.refused("remove", "b", "two", says="has no directory")
    place.refused("remove", "b", "one", says="has no other directory")
    assert place.codes("one") == {here: Code.OK, gone: Code.NO_LEDGER, 77: Code.NO_LEDGER}


def test_nothing_goes_while_another_cannot_be_read(place: Place) -> None:
    (place.root / "two" / "current" / "DIRECTORY").write_text("rot")
    place.refused("remove", "b", "one", says="none of the other directories")
