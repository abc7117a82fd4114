"""A bookie does not start on a directory that a later version of Quire wrote, and nothing treats
such a directory as lost."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from quire.bookie.background.collection_guard import MARK_NAME, encode_mark
from quire.bookie.directories.identity import COOKIE_FILE
from quire.errors import KeyExistsError, LaterCookieError, LaterVersionError, MetadataError
from quire.metadata.bookies import collection, directories, orders
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Put
from tests.support.bookies.lost_directory import Place
from tests.support.storage import later_versions as later
from tests.support.storage.later_versions import Change


def cookie(old: bytes, new: bytes) -> Change:
    def change(directory: Path) -> Path:
        path = directory / COOKIE_FILE
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new, 1))
        return path

    return change


CHANGES: dict[str, tuple[Change, str]] = {
    "cookie layout": (cookie(b"5\n", b"6\n"), "layout 6"),
    "cookie field": (cookie(b"journalDir", b'tier: "2"\njournalDir'), "an unknown field"),
    "identity": (
        later.lines("DIRECTORY", checked=False, old=b"format: 1", new=b"format: 2"),
        "format 2",
    ),
    "incarnation": (
        later.lines("INCARNATION", checked=True, old=b"format: 1", new=b"format: 2"),
        "format 2",
    ),
    "metadata mark": (later.metadata_mark, "the lines count, token, epoch"),
    "segment": (later.segment_header, "log format 4"),
}


def digests(place: Place) -> dict[str, str]:
    return {
        str(path.relative_to(place.root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for name in ("one", "two")
        for path in sorted((place.root / name).rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }


@pytest.mark.parametrize("what", CHANGES)
def test_one_directory_of_a_later_version_prevents_the_start(place: Place, what: str) -> None:
    """The other directory is unchanged, so the start can be repeated."""
    change, found = CHANGES[what]
    mark = place.root / "two" / MARK_NAME
    if not mark.exists():  # a bookie writes it a moment after its start
        mark.write_bytes(encode_mark(collection.CollectionMark(1, "t")))
    change(place.root / "two")
    before, state = digests(place), place.state()
    for _ in range(2):
        with pytest.raises(LaterVersionError) as refused:
            place.codes("one", "two")
        assert found in str(refused.value)
        assert "written by a later version of Quire" in str(refused.value)
        assert str(refused.value).endswith("or a later one. Nothing is damaged")
    assert digests(place) == before
    assert place.state() == state


@pytest.mark.parametrize("what", ["cookie layout", "identity", "segment"])
def test_a_directory_of_a_later_version_does_not_count_as_lost(place: Place, what: str) -> None:
    change, found = CHANGES[what]
    change(place.root / "two")
    (place.root / "three").mkdir()
    before = place.state()
    for words in (
        ("replace", "b", "two"),
        ("replace", "b", "two", "three"),
        ("remove", "b", "one"),
    ):
        done = place.run(*words)
        assert done.exit_code
        assert found in done.stderr
        assert "written by a later version of Quire" in done.stderr
        assert place.state() == before


def test_an_operator_can_erase_a_directory_of_a_later_version_by_force(place: Place) -> None:
    """Only with --force: without it, the command says what the directory is."""
    from click.testing import CliRunner

    from quire.cli.main import cli

    CHANGES["identity"][0](place.root / "two")
    command = ["bookie", "format", "--dir", place.path("two"), "--yes"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code
    assert "later version" in done.output


# -- what the store holds for the bookie --------------------------------------------------------


async def _change(path: str, old: bytes, new: bytes, store: MetadataStore) -> None:
    found = await store.tree.read(path)
    assert old in found.value
    await store.tree.commit(Put(path, found.value.replace(old, new, 1), found.version))


async def _cookie_of_the_future(store: MetadataStore) -> None:
    found = await store.read_cookie("b")
    await store.write_cookie("b", found.value.replace(b"5\n", b"7\n", 1), found.version)


def test_a_cluster_cookie_of_a_later_version_prevents_the_start(place: Place) -> None:
    place.in_store(_cookie_of_the_future)
    before = digests(place)
    with pytest.raises(LaterCookieError, match="layout 7"):
        place.codes("one", "two")
    assert digests(place) == before


def test_a_directory_record_of_a_later_version_prevents_the_start(place: Place) -> None:
    path = directories.directories_path(place.uri, "b")
    place.in_store(partial(_change, path, b'"given_up"', b'"format": 2, "given_up"'))
    before = digests(place)
    with pytest.raises(LaterVersionError, match="format 2"):
        place.codes("one", "two")
    assert digests(place) == before


async def _give(store: MetadataStore) -> None:
    order = orders.Order(orders.What.DRAIN, 1, "test")
    await orders.give_order(store, "b", order, None)


def test_an_order_of_a_later_version_prevents_the_start(place: Place) -> None:
    place.in_store(_give)
    path = orders.order_path(place.uri, "b")
    place.in_store(partial(_change, path, b'"drain"', b'"freeze"'))
    with pytest.raises(LaterVersionError, match="the order 'freeze'"):
        place.codes("one", "two")


async def _marked(store: MetadataStore) -> None:
    with suppress(KeyExistsError):  # the bookie has written one already
        mark = collection.BookieMark(collection.CollectionMark(5, "t"))
        await collection.write_mark(store, "b", mark, None)


def test_a_collection_mark_of_a_later_version_is_refused(place: Place) -> None:
    """It is neither accepted nor taken for a store that went back in time."""
    place.in_store(_marked)
    path = collection.mark_path(place.uri, "b")
    place.in_store(partial(_change, path, b'{"count"', b'{"format": 2, "count"'))
    for call in (
        lambda store: collection.read_mark(store, "b"),
        lambda store: collection.accept(store, "b"),
        collection.check_not_back,
    ):
        with pytest.raises(MetadataError, match="later version of Quire: it has format 2"):
            place.in_store(call)
