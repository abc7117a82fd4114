"""Facts about streams on simulated bookies.

The tests cover contents, distances of readers, locations of namespaces, and ledgers without a
stream.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from quire.client.datasets.format import DatasetLedger
from quire.client.unreadable_items import Skipped
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.namespace_binding import NamespaceBinding
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.metadata import layout
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import LedgerFencedError, MetadataError
from quire.metadata.tree import Create, Operation, Put, Result
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.streams.namespace.tree_search import namespace_sizes, namespaces
from quire.streams.ownership import orphans
from quire.streams.ownership.orphans import delete_orphans, find_orphans, look_for_orphans
from quire.streams.ownership.owners import find_claims
from quire.streams.read.positions import AtSequence
from quire.streams.read.statistics import before_end, records_from, segment_statistics
from quire.streams.write.segments import APPLICATION
from tests.support.metadata.lagging import LaggingServer
from tests.support.streams import Bench, run

COUNT = 25
"""Records of a stream: two segments of ten, and one in progress."""

LAYOUT = layout.encode(layout.Layout(layout.HIERARCHICAL))


async def written(made: Bench, name: str) -> None:
    """Left open, so that the last segment is in progress."""
    writer = await made.streams.open_writer(name, create=True)
    for number in range(COUNT):
        if number in (10, 20):
            await writer.roll()
        await writer.append(b"%d" % number)


async def abandoned_ledger(made: Bench, stream: str = "/acme/test/a") -> int:
    ledger = await made.client.create_ledger(custom={**APPLICATION, "stream": stream.encode()})
    ledger.abandon()
    return ledger.ledger_id


# -- facts ------------------------------------------------------------------------------------


def test_segment_statistics_of_a_stream() -> None:
    async def scene(made: Bench) -> None:
        await written(made, "a")
        facts = await segment_statistics(made.client, await made.streams.segments("a"))
        assert [fact.records for fact in facts] == [10, 10, 5]
        assert [fact.segment.in_progress for fact in facts] == [False, False, True]
        records = await made.read("a")
        assert [fact.last for fact in facts] == [records[at].position for at in (9, 19, 24)]
        assert [fact.last_txid for fact in facts] == [records[at].txid for at in (9, 19, 24)]
        ledger = await made.client.ledger_metadata(facts[0].segment.ledger_id)
        assert (facts[0].size_bytes, facts[0].ctime_ms) == (ledger.length, ledger.ctime_ms)
        assert facts[2].size_bytes > 0

    run(scene)


def test_segment_statistics_of_an_empty_stream() -> None:
    async def scene(made: Bench) -> None:
        await made.streams.create_stream("a")
        assert await segment_statistics(made.client, await made.streams.segments("a")) == []
        assert await before_end(made.client, [], 5) is None
        assert await records_from(made.client, [], DLSN(1, 0, 0)) == 0

    run(scene)


def test_records_are_counted_backward_and_forward_from_a_position() -> None:
    async def scene(made: Bench) -> None:
        await written(made, "a")
        records = await made.read("a")
        facts = await segment_statistics(made.client, await made.streams.segments("a"))
        assert await before_end(made.client, facts, 0) is None
        for count in range(1, COUNT + 1):
            position = await before_end(made.client, facts, count)
            assert position == records[-count].position, count
            assert await records_from(made.client, facts, position) == count
            behind = records[-count].position.next_slot()
            assert await records_from(made.client, facts, behind) == count - 1
        assert await before_end(made.client, facts, COUNT + 1) == records[0].position
        assert await records_from(made.client, facts, DLSN(9, 0, 0)) == 0

    run(scene)


@pytest.mark.parametrize("gone", [3, 10, 13])
def test_truncated_records_are_not_counted(gone: int) -> None:
    async def scene(made: Bench) -> None:
        await written(made, "a")
        records = await made.read("a")
        await made.streams.truncate("a", records[gone].position)
        facts = await segment_statistics(made.client, await made.streams.segments("a"))
        assert await records_from(made.client, facts, DLSN(1, 0, 0)) == COUNT - gone
        assert await before_end(made.client, facts, COUNT) == records[gone].position
        assert await before_end(made.client, facts, 8) == records[-8].position

    run(scene)


def test_segment_statistics_report_a_lost_ledger() -> None:
    async def scene(made: Bench) -> None:
        await written(made, "a")
        segments = await made.streams.segments("a")
        await made.client.delete_ledger(segments[1].ledger_id)
        facts = await segment_statistics(made.client, segments)
        assert [fact.lost for fact in facts] == [False, True, False]
        assert await records_from(made.client, facts, DLSN(1, 0, 0)) == 15
        assert await before_end(made.client, facts, 9) == DLSN(3, 0, 0)
        assert await before_end(made.client, facts[:2], 9) == DLSN(2, 0, 0)

    run(scene)


# -- namespaces -------------------------------------------------------------------------------


def test_namespaces_are_found_at_every_depth() -> None:
    async def scene(made: Bench) -> None:
        await written(made, "a/b")
        await open_namespace(made.client, "/acme/test/inner", create=True)
        await open_namespace(made.client, "/other", create=True)
        tree = made.client.metadata.tree
        binding = NamespaceBinding.of_one("localhost:2181", "/ledgers").to_bytes()
        await tree.make_path("/java/streams", binding)
        await tree.make_path("/java/nothing", b"something else")
        await tree.make_path("/ledgers-of-another/available")
        await tree.make_path("/ledgers-of-another/LAYOUT", LAYOUT)
        await tree.make_path("/ledgers-of-another/x", binding)
        assert await namespaces(made.client) == [
            "/acme/test", "/acme/test/inner", "/java/streams", "/other",
        ]  # fmt: skip

    run(scene)


@pytest.mark.parametrize("below", ["", "/x"])
def test_streams_named_like_nodes_of_a_ledgers_root_keep_their_ledgers(below: str) -> None:
    """Their namespace was taken for a ledgers root, so all of its ledgers were orphans."""

    async def scene(made: Bench) -> None:
        names = [f"LAYOUT{below}", f"available{below}", "other"]
        for name in names:
            async with made.streams.open_writer(name, create=True) as writer:
                await writer.append(b"0")
        assert await namespaces(made.client) == ["/acme/test"]
        assert await namespace_sizes(made.client) == {"/acme/test": 3}
        await asyncio.sleep(1)
        assert await look_for_orphans(made.client, 0.0) == orphans.OrphanReport([], [])

    run(scene)


def test_the_streams_of_each_namespace_are_counted() -> None:
    """The count equals the length of the list of streams, partitions of topics included."""

    async def scene(made: Bench) -> None:
        inner = await open_namespace(made.client, "/acme/test/inner", create=True)
        await open_namespace(made.client, "/empty", create=True)
        for name in ("a", "a/b", "c-d"):
            await made.streams.create_stream(name)
        await made.streams.create_topic("visits", 3)
        await inner.create_stream("deep/er")
        found = await namespace_sizes(made.client)
        assert found == {"/acme/test": 7, "/acme/test/inner": 1, "/empty": 0}
        assert found["/acme/test"] == len(await made.streams.streams())

    run(scene)


# -- orphans ----------------------------------------------------------------------------------


def test_ledgers_that_a_stream_names_are_no_orphans() -> None:
    """Segments, the one made ahead, and those of a stream that was renamed."""

    async def scene(made: Bench) -> None:
        await written(made, "a")
        await written(made, "b")
        await made.streams.rename_stream("b", "c/d")
        assert await find_orphans(made.client, 0) == []
        assert len(await made.ledgers()) >= 6

    run(scene)


def test_an_orphan_is_found_and_deleted() -> None:
    async def scene(made: Bench) -> None:
        await written(made, "a")
        ledger_id = await abandoned_ledger(made)
        other = await made.client.create_ledger(custom={"application": b"other"})
        assert await find_orphans(made.client, 3_600) == []
        assert await find_orphans(made.client, 0, first=ledger_id + 1) == []
        found = await find_orphans(made.client, 0)
        assert [(one.ledger_id, one.stream) for one in found] == [(ledger_id, "/acme/test/a")]
        assert await delete_orphans(made.client, found) == []
        left = await made.ledgers()
        assert ledger_id not in left
        assert other.ledger_id in left
        assert len(await made.read("a")) == COUNT
        assert await delete_orphans(made.client, found) == []

    run(scene)


def test_ledgers_of_a_stream_that_other_tools_deleted_are_orphans() -> None:
    async def scene(made: Bench) -> None:
        await written(made, "a")
        ledgers = await made.ledgers()
        await made.client.metadata.tree.delete_tree("/acme/test/a")
        assert [one.ledger_id for one in await find_orphans(made.client, 0)] == ledgers

    run(scene)


@pytest.mark.parametrize("named_by", ["a segment", "a dataset", "a renamed stream"])
@pytest.mark.parametrize("found", ["before", "after"])
def test_a_server_of_the_store_that_lags_makes_no_orphans(found: str, named_by: str) -> None:
    """The server does not show yet what names the ledger."""

    async def scene(made: Bench) -> None:
        await written(made, "a")
        # It is closed, so nothing has to be fenced, which would make the server catch up.
        ledger = await made.client.create_ledger(custom={**APPLICATION, "stream": b"/acme/test/a"})
        await ledger.append(b"one")
        await ledger.close()
        ledger_id = ledger.ledger_id
        async with made.world.client("lagging") as lagging:
            server = LaggingServer(lagging.metadata)
            orphans = await find_orphans(lagging, 0)
            assert [one.ledger_id for one in orphans] == [ledger_id]
            metadata = made.streams.metadata("a")
            if named_by == "a renamed stream":  # as if the search had looked at both names too soon
                await delete_orphans(made.client, orphans)
                ledger_id = (await metadata.segments())[0].ledger_id
                orphans = [replace(orphans[0], ledger_id=ledger_id)]
            server.fall_behind()
            match named_by:
                case "a segment":
                    segment = StreamSegment(9, ledger_id, 1)
                    path = metadata.paths.segment(segment.name)
                    await metadata.tree.commit(Create(path, segment.to_bytes()))
                case "a dataset":
                    part = DatasetLedger(ledger_id, 0, 0, 1, 3)
                    await made.client.datasets.publish("d", [part])
                case _:
                    await made.streams.rename_stream("a", "b")
            if found == "after":
                assert await find_orphans(lagging, 0) == []
            else:
                [left] = await delete_orphans(lagging, orphans)
                assert left.orphan.ledger_id == ledger_id
        assert ledger_id in await made.ledgers()

    run(scene)


def test_a_paused_writer_is_fenced_before_its_ledger_is_deleted() -> None:
    async def scene(made: Bench) -> None:
        custom = {**APPLICATION, "stream": b"/acme/test/a"}
        ledger = await made.client.create_ledger(custom=custom)
        await ledger.append(b"one")
        found = await find_orphans(made.client, 0)
        assert await delete_orphans(made.client, found) == []
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"two")

    run(scene)


@pytest.mark.parametrize("name", ["orders/.tmp", "orders/.tmp/eu", "orders/..."])
def test_the_ledgers_of_a_stream_with_a_hidden_part_are_no_orphans(name: str) -> None:
    """The search did not enter nodes with a dot, so a deletion of orphans deleted the stream."""

    async def scene(made: Bench) -> None:
        await written(made, "plain")
        await written(made, name)
        await made.streams.rename_stream("plain", f"{name}-renamed")
        assert await find_orphans(made.client, 0) == []
        [first, *_] = await made.streams.segments(f"{name}-renamed")
        claims = await find_claims(made.client, [first.ledger_id])
        assert [claim.name for claim in claims[first.ledger_id]] == [
            f"stream {name}-renamed in namespace /acme/test"
        ]
        assert await namespace_sizes(made.client) == {"/acme/test": 2}

    run(scene)


def test_ledgers_of_names_that_earlier_versions_allowed_are_no_orphans() -> None:
    async def scene(made: Bench) -> None:
        for stream in ("/acme/test/near/.quire", "/acme/test/near/.quire/topics/t"):
            await abandoned_ledger(made, stream)
        ledger_id = await abandoned_ledger(made, "/acme/test/near/.quired")
        assert [one.ledger_id for one in await find_orphans(made.client, 0)] == [ledger_id]

    run(scene)


def test_the_streams_of_a_namespace_among_ledgers_keep_their_ledgers() -> None:
    """Another program has made the namespace. The search leaves out the root of the ledgers."""

    async def scene(made: Bench) -> None:
        tree = made.client.metadata.tree
        await tree.make_path("/cluster/ledgers/available")
        await tree.make_path("/cluster/ledgers/LAYOUT", LAYOUT)
        binding = NamespaceBinding.of_one("localhost:2181", "/cluster/ledgers").to_bytes()
        await tree.make_path("/cluster/ledgers/streams/.quire")
        await tree.commit(Put("/cluster/ledgers/streams", binding))
        streams = Namespace(made.client, "/cluster/ledgers/streams", {}, b"")
        async with streams, streams.open_writer("a", create=True) as writer:
            await writer.append(b"0")
        assert await find_orphans(made.client, 0) == []
        ledger_id = await abandoned_ledger(made, "/cluster/a")
        assert [one.ledger_id for one in await find_orphans(made.client, 0)] == [ledger_id]

    run(scene)


def test_namespaces_with_the_names_of_nodes_of_a_ledgers_root_hide_no_ledgers() -> None:
    """The node of a bound namespace has a value, as the node LAYOUT of ledgers has."""

    async def scene(made: Bench) -> None:
        tree = made.client.metadata.tree
        binding = NamespaceBinding.of_one("localhost:2181", "/ledgers").to_bytes()
        await tree.make_path("/acme/LAYOUT", binding)
        await tree.make_path("/acme/available", binding)
        await written(made, "a")
        assert await find_orphans(made.client, 0) == []
        assert await namespaces(made.client) == ["/acme/LAYOUT", "/acme/available", "/acme/test"]

    run(scene)


@pytest.mark.parametrize("state", ["whole", "published meanwhile", "damaged"])
def test_a_ledger_that_a_dataset_names_is_no_orphan(state: str) -> None:
    """It was created for a stream, and published by a user after the stream was gone."""

    async def scene(made: Bench) -> None:
        custom = {**APPLICATION, "stream": b"/acme/test/a"}
        async with made.client.create_ledger(custom=custom) as ledger:
            await ledger.append(b"one")
        ledger_id = ledger.ledger_id
        found = await find_orphans(made.client, 0)
        await made.client.datasets.publish("rescued", [DatasetLedger(ledger_id, 0, 0, 1, 1)])
        why = "a dataset names it"
        if state == "damaged":
            node = await made.client.metadata.read_value(("datasets", "rescued"))
            await made.client.metadata.write_value(("datasets", "rescued"), b"?", node.version)
            why = "a dataset that may name it cannot be read: dataset rescued: "
        if state != "published meanwhile":
            report = await look_for_orphans(made.client, 0)
            assert report.orphans == []
            skipped = ["dataset rescued"] if state == "damaged" else []
            assert [one.what for one in report.skipped] == skipped
        [left] = await delete_orphans(made.client, found)
        assert left.orphan.ledger_id == ledger_id
        assert left.why.startswith(why)
        assert ledger_id in await made.ledgers()

    run(scene)


def test_a_stream_renamed_during_the_search_keeps_its_ledgers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first read misses it, and the second decides."""
    looks = 0
    named = orphans._named

    async def misses_at_first(*arguments: object) -> orphans._Place:
        nonlocal looks
        looks += 1
        return orphans._Place() if looks == 1 else await named(*arguments)  # type: ignore[arg-type]

    async def scene(made: Bench) -> None:
        await written(made, "a")
        assert await find_orphans(made.client, 0) == []
        assert looks == 2

    monkeypatch.setattr(orphans, "_named", misses_at_first)
    run(scene)


def test_an_orphan_that_was_named_meanwhile_is_kept() -> None:
    async def scene(made: Bench) -> None:
        ledger_id = await abandoned_ledger(made)
        found = await find_orphans(made.client, 0)
        await made.streams.create_stream("a")
        tree = made.client.metadata.tree
        await tree.commit(Put("/acme/test/a/<default>/allocation", b"%d" % ledger_id))
        (left,) = await delete_orphans(made.client, found)
        assert (left.orphan.ledger_id, left.why) == (ledger_id, "a stream names it now")
        assert ledger_id in await made.ledgers()

    run(scene)


def test_an_orphan_that_cannot_be_fenced_is_kept() -> None:
    async def scene(made: Bench) -> None:
        ledger_id = await abandoned_ledger(made)
        found = await find_orphans(made.client, 0)
        for name in list(made.world.bookies)[:2]:
            await made.world.stop(name)
        (left,) = await delete_orphans(made.client, found)
        assert left.orphan.ledger_id == ledger_id
        assert str(ledger_id) in left.why
        assert ledger_id in await made.ledgers()

    run(scene)


def test_an_undecodable_segment_may_name_any_ledger() -> None:
    async def scene(made: Bench) -> None:
        await written(made, "a")
        await abandoned_ledger(made)
        tree = made.client.metadata.tree
        before = await look_for_orphans(made.client, 0)
        assert len(before.orphans) == 1
        (name, *_) = await tree.children("/acme/test/a/<default>/ledgers")
        path = f"/acme/test/a/<default>/ledgers/{name}"
        await tree.commit(Put(path, b"rubbish"))
        # A ledger made for a stream of another namespace is an orphan still.
        custom = {**APPLICATION, "stream": b"/other/test/b"}
        other = await made.client.create_ledger(custom=custom)
        found = await look_for_orphans(made.client, 0)
        assert [one.ledger_id for one in found.orphans] == [other.ledger_id]
        (skipped,) = found.skipped
        assert skipped.what == "stream /acme/test/a"
        assert path in skipped.why
        assert "rubbish" in skipped.why
        (left,) = await delete_orphans(made.client, [*before.orphans, *found.orphans])
        assert left.orphan == before.orphans[0]
        assert "a stream that may name it cannot be read: stream /acme/test/a" in left.why
        assert other.ledger_id not in await made.ledgers()

    run(scene)


@pytest.mark.parametrize("stream", [b"/", b"//", b"/\xff/x", b"/a\0b/c"])
def test_a_ledger_of_an_impossible_stream_does_not_stop_the_search(stream: bytes) -> None:
    async def scene(made: Bench) -> None:
        await made.client.create_ledger(custom={**APPLICATION, "stream": stream})
        ledger_id = await abandoned_ledger(made)
        found = await look_for_orphans(made.client, 0)
        assert ledger_id in [one.ledger_id for one in found.orphans]

    run(scene)


def test_a_ledger_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(made: Bench) -> None:
        ledger_id = await abandoned_ledger(made)
        poisoned = await abandoned_ledger(made)
        read = made.client.ledger_metadata

        async def ledger_metadata(wanted: int) -> LedgerMetadata:
            if wanted == poisoned:
                raise MetadataError("it cannot be understood")
            return await read(wanted)

        monkeypatch.setattr(made.client, "ledger_metadata", ledger_metadata)
        found = await look_for_orphans(made.client, 0)
        assert [one.ledger_id for one in found.orphans] == [ledger_id]
        assert found.skipped == [Skipped(f"ledger {poisoned}", "it cannot be understood")]

    run(scene)


@pytest.mark.parametrize("call", ["segments", "find", "read", "read from a time"])
def test_a_server_that_lags_hides_no_record_that_was_acknowledged(call: str) -> None:
    """A search found an earlier place, and a reader ended before the last records."""

    async def scene(made: Bench) -> None:
        await written(made, "a")
        async with made.world.client("lagging") as client:
            streams = await open_namespace(client, "/acme/test")
            LaggingServer(client.metadata).fall_behind()
            async with await made.streams.open_writer("a") as writer:
                for number in range(COUNT, 2 * COUNT):
                    last = await writer.append(b"%d" % number)
            wanted = await made.streams.segments("a")
            match call:
                case "segments":
                    assert await streams.segments("a") == wanted
                case "find":
                    assert await streams.find("a", AtSequence(2 * COUNT - 1)) == last
                case "read":
                    found = [one.sequence async for one in streams.open_reader("a")]
                    assert found == list(range(2 * COUNT))
                case _:
                    start = AtSequence(2 * COUNT - 3)
                    found = [one.payload async for one in streams.open_reader("a", start=start)]
                    assert found == [b"47", b"48", b"49"]

    run(scene)


@pytest.mark.parametrize("call", ["truncate", "retain", "streams", "topics", "subscriptions"])
def test_a_server_that_lags_hides_nothing_that_others_have_made(call: str) -> None:
    """A truncation left segments that were completed before, and lists were not complete."""

    async def scene(made: Bench) -> None:
        await made.streams.create_stream("a", settings={"retention_s": 30})
        await made.streams.create_topic("t", 1)
        await made.streams.subscription("a", "one").commit(DLSN(1, 0, 0))
        async with made.world.client("lagging") as client:
            streams = await open_namespace(client, "/acme/test")
            LaggingServer(client.metadata).fall_behind()
            for _ in range(3):  # each writer completes a segment
                async with await made.streams.open_writer("a") as writer:
                    last = await writer.append(b"one")
            await made.streams.create_stream("b")
            await made.streams.create_topic("u", 1)
            await made.streams.subscription("a", "two").commit(last)
            match call:
                case "truncate":
                    await streams.truncate("a", last)
                    assert [s.lssn for s in await made.streams.segments("a")] == [2, 3]
                case "retain":
                    await asyncio.sleep(60.0)
                    await streams.retain("a")
                    assert [s.lssn for s in await made.streams.segments("a")] == [2, 3]
                case "streams":
                    assert await streams.streams() == ["a", "b", "t/0", "u/0"]
                case "topics":
                    assert await streams.topics() == ["t", "u"]
                case _:
                    assert await streams.subscriptions("a") == ["one", "two"]

    run(scene)


def test_a_topic_that_was_created_again_is_there_although_the_server_lags() -> None:
    """The server showed the former topic, whose deletion had begun."""

    async def scene(made: Bench) -> None:
        await made.streams.create_topic("t", 2)
        async with made.world.client("lagging") as client:
            streams = await open_namespace(client, "/acme/test")
            server = LaggingServer(client.metadata)
            commit = made.client.metadata.tree.commit

            async def seen(*operations: Operation) -> list[Result]:
                done = await commit(*operations)
                found = await made.streams._topics.find("t")
                if found is not None and found.deleting and not server.behind:
                    server.fall_behind()
                return done

            made.client.metadata.tree.commit = seen  # type: ignore[method-assign]
            await made.streams.delete_topic("t")
            await made.streams.create_topic("t", 3)
            assert server.behind
            assert (await streams.topic("t")).partitions == 3

    run(scene)
