"""Pages of stream names are the same as the whole list, and read less."""

from __future__ import annotations

import random

import pytest

from quire.metadata.tree import Put
from quire.metadata.values import ANY_VERSION
from quire.streams.namespace import tree_search
from quire.streams.namespace.removal import delete_stream
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.topic_nodes import topic_path
from quire.streams.namespace.tree_search import streams_page
from quire.streams.topics.topic_metadata import TopicMetadata
from tests.support.streams import Bench, run

NAMES = [
    "a", "a-b", "a/b", "a/b/c", "a0", "b/c", "b.c", "b/c-d", "c", "orders", "orders/eu",
    "orders-eu", "z/y/x", "é", "<b>", "日本",
]  # fmt: skip


async def made(b: Bench) -> list[str]:
    rng = random.Random(3)
    more = {f"{rng.choice('abcz')}{rng.choice('-/.')}{rng.randrange(40)}" for _ in range(60)}
    for name in {*NAMES, *more} - {"<b>"}:
        await b.streams.create_stream(name)
    return await b.streams.streams()


def test_pages_of_every_size_list_each_stream_once() -> None:
    async def scene(b: Bench) -> None:
        names = await made(b)
        for limit in (1, 2, 7, 16, 17, len(names), 1_000):
            found: list[str] = []
            after: str | None = ""
            while after is not None:
                page = await streams_page(b.streams, after=after, limit=limit)
                after = page.next
                assert page.names == page.streams()
                assert len(page.names) <= limit
                assert after is None or len(page.names) == limit
                found += page.names
            assert found == names
        for after in ("a", "a-", "a/b", "a/zzz", "b", "orders", "zzz"):
            page = await streams_page(b.streams, after=after, limit=1_000)
            assert (page.names, page.next) == ([name for name in names if name > after], None)

    run(scene)


def test_a_search_returns_the_names_that_contain_the_text() -> None:
    async def scene(b: Bench) -> None:
        names = await made(b)
        for part in ("order", "/", "-", "nothing", "日"):
            page = await streams_page(b.streams, limit=1_000, part=part)
            assert page.names == [name for name in names if part in name]

    run(scene)


def test_a_search_that_takes_long_continues_on_the_next_page() -> None:
    async def scene(b: Bench) -> None:
        names = await made(b)
        found: list[str] = []
        after: str | None = ""
        rounds = 0
        while after is not None:
            page = await streams_page(
                b.streams, after=after, limit=1_000, part="e", is_late=lambda: True
            )
            after = page.next
            found += page.names
            rounds += 1
        assert found == [name for name in names if "e" in name]
        assert rounds > 2

    run(scene)


# -- topics -----------------------------------------------------------------------------------


async def with_topics(b: Bench) -> None:
    """Create topics, and streams whose names are those of topics or partitions, or nearly so."""
    # The streams come first, because visits/12 cannot be created beside a topic of 12 partitions.
    for name in ("visits/12", "visits/7/more", "visits-eu", "a/other", "plain", "visit"):
        await b.streams.create_stream(name)
    for name, partitions in (("visits", 12), ("a/nested", 3), ("one", 1)):
        await b.streams.create_topic(name, partitions)


SHOWN = [
    "a/nested", "a/other", "one", "plain", "visit", "visits", "visits-eu", "visits/12",
    "visits/7/more",
]  # fmt: skip


def test_a_topic_is_listed_as_one_name_on_one_page() -> None:
    async def scene(b: Bench) -> None:
        await with_topics(b)
        for limit in (1, 2, 3, len(SHOWN), 1_000):
            names: list[str] = []
            streams: list[str] = []
            after: str | None = ""
            while after is not None:
                page = await streams_page(b.streams, after=after, limit=limit)
                assert page.names == sorted(page.names)
                assert len(page.names) <= limit
                assert set(page.topics) == {"visits", "a/nested", "one"} & set(page.names)
                names += page.names
                streams += page.streams()
                after = page.next
            assert names == SHOWN
            assert sorted(streams) == await b.streams.streams()
        page = await streams_page(b.streams, limit=1_000)
        at = page.streams().index("visits/0")
        assert page.streams()[at : at + 12] == [f"visits/{number}" for number in range(12)]
        assert page.topics["visits"].partitions == 12

    run(scene)


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("nested", ["a/nested"]),
        ("visits/3", ["visits"]),  # the name of a partition finds its topic
        ("visits/12", ["visits/12"]),
        ("visits", ["visits", "visits-eu", "visits/12", "visits/7/more"]),
    ],
)
def test_a_search_finds_topics(part: str, found: list[str]) -> None:
    async def scene(b: Bench) -> None:
        await with_topics(b)
        assert (await streams_page(b.streams, limit=1_000, part=part)).names == found

    run(scene)


def test_a_page_ends_at_its_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(b: Bench) -> None:
        await with_topics(b)
        monkeypatch.setattr(tree_search, "PAGE_STREAMS_MAX", 5)
        pages = []
        after: str | None = ""
        while after is not None:
            page = await streams_page(b.streams, after=after, limit=1_000)
            pages.append(page.names)
            after = page.next
        assert pages == [
            ["a/nested", "a/other", "one"], ["plain", "visit", "visits"],
            ["visits-eu", "visits/12", "visits/7/more"],
        ]  # fmt: skip

    run(scene)


def test_a_partly_deleted_topic_is_listed_with_its_remaining_partitions() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("visits", 3)

        async def delete(stream: StreamMetadata, _: object) -> None:
            if stream.paths.name != "visits/0":
                raise ConnectionError
            await delete_stream(b.client, stream, b"")

        with pytest.raises(ConnectionError):
            await TopicMetadata(b.client, b.streams.path).delete("visits", delete)
        page = await streams_page(b.streams, limit=1_000)
        assert page.names == ["visits", "visits/1", "visits/2"]
        assert page.topics["visits"].deleting
        assert page.streams() == ["visits/1", "visits/2"]
        await b.streams.delete_topic("visits")
        assert (await streams_page(b.streams, limit=1_000)).names == []

    run(scene)


def test_a_topic_that_cannot_be_read_does_not_hide_the_others() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_topic("good", 2)
        await b.streams.create_topic("bad", 2)
        path = topic_path(b.streams.path, "bad")
        await b.client.metadata.tree.commit(Put(path, b"garbage", ANY_VERSION))
        page = await streams_page(b.streams, limit=1_000)
        assert page.names == ["bad/0", "bad/1", "good"]
        (why,) = page.unreadable
        assert "of topic bad cannot be decoded" in why

    run(scene)
