"""Ledgers that streams, objects and datasets name but that are gone: found, named and counted."""

from __future__ import annotations

import pytest

from quire._runtime.clock import SystemClock
from quire._runtime.metrics import exposition
from quire.client import Client
from quire.client.datasets.format import DatasetLedger
from quire.codec.distributedlog.name import StreamPaths
from quire.errors import MetadataUnavailableError, NoSuchLedgerError
from quire.http.views.cluster_view import ClusterView, cluster_metrics
from quire.http.views.stream_statistics import stream_statistics
from quire.http.watch.observations import LOST_INTERVAL_S, LostLedgerSearch
from quire.metadata.ledgers import deletions
from quire.metadata.ledgers.deletions import Deletion, deletion_of, note_deletion, this_user
from quire.metadata.tree import Put
from quire.streams import DLSN, Namespace
from quire.streams.namespace.namespace import open_namespace
from quire.streams.objects.format import head_key
from quire.streams.objects.objects import Objects
from quire.streams.ownership.lost_ledgers import LostLedgers, lost_ledgers
from quire.streams.ownership.orphans import look_for_orphans
from quire.streams.ownership.owners import missed

NAMESPACE = "/streams"


async def looked(client: Client) -> LostLedgers:
    found = [one async for one in lost_ledgers(client)]
    assert found[-1].whole
    return found[-1]


async def stream_of(client: Client, name: str, segments: int = 3) -> Namespace:
    streams = await open_namespace(client, NAMESPACE, create=True)
    await streams.create_stream(name)
    for n in range(segments):
        async with await streams.open_writer(name) as writer:
            await writer.append(b"%d" % n)
    return streams


async def test_a_lost_segment_is_named_with_its_positions(client: Client) -> None:
    streams = await stream_of(client, "orders")
    segments = await streams.segments("orders")
    assert (await looked(client)).count == 0
    await client.delete_ledger(segments[1].ledger_id)
    found = await looked(client)
    assert dict(found.counts) == {"stream": 1}
    [one] = found.lost
    assert (one.ledger_id, str(one.owner)) == (
        segments[1].ledger_id,
        "stream orders in namespace /streams",
    )
    assert one.part == (
        f"segment 2, 1 record from position {segments[1].first_dlsn} to {segments[1].last_dlsn}"
    )
    assert one.after == str(segments[2].first_dlsn), "the stream continues there"
    assert one.like in (segments[0].ledger_id, segments[2].ledger_id)
    await streams.truncate("orders", DLSN.parse(one.after))
    assert (await looked(client)).count == 0, "following the advice resolves the problem"


async def test_the_search_says_who_deleted_a_ledger_by_its_id(client: Client) -> None:
    """Nothing told who had deleted the ledger of a stream, and when."""
    streams = await stream_of(client, "orders", 2)
    first, second = (one.ledger_id for one in await streams.segments("orders"))
    await note_deletion(client.metadata, first, 1_000, "quire ledger delete --force")
    for ledger_id in (first, second):
        await client.delete_ledger(ledger_id)
    known, unknown = (await looked(client)).lost
    assert unknown.deletion is None
    assert known.deletion == Deletion(this_user(), 1_000, "quire ledger delete --force")
    error = await missed(client, NoSuchLedgerError("gone"), first)
    assert str(error.args[0]).endswith(
        f"{this_user()} deleted it at 1970-01-01T00:00:01Z (quire ledger delete --force)"
    )


async def test_notes_of_deletions_are_bounded_and_may_be_damaged(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "KEPT_MAX", 2)
    store = client.metadata
    for ledger_id in (9, 7, 8, 9):
        await note_deletion(store, ledger_id, 5, "x")
    assert await deletion_of(store, 7) is None
    assert (await deletion_of(store, 9)) == Deletion(this_user(), 5, "x")
    for damaged in (b"x", b"[]", b"{}", b'{"by": "a", "at_ms": "1", "how": "x"}'):
        version = (await store.read_value(("ledgers", "deleted", "8"))).version
        await store.write_value(("ledgers", "deleted", "8"), damaged, version)
        assert await deletion_of(store, 8) is None


async def test_a_short_search_is_repeated_soon(client: Client) -> None:
    """The dashboard said for a minute that all was well while `quire explain` did not."""
    streams = await stream_of(client, "orders")
    segments = await streams.segments("orders")
    now_s = 0.0
    search = LostLedgerSearch(lambda: now_s, wait_s=60)
    found = await search.of(client)
    assert found is not None
    assert (found.count, search.age_s) == (0, 0.0)
    await client.delete_ledger(segments[1].ledger_id)
    now_s += LOST_INTERVAL_S - 1
    found = await search.of(client)
    assert found is not None
    assert (found.count, search.age_s) == (0, LOST_INTERVAL_S - 1), "and its age is known"
    now_s += 1
    found = await search.of(client)
    assert found is not None
    assert (found.count, search.age_s) == (1, 0.0)
    await search.close()


async def test_a_search_that_fails_does_not_make_its_result_current(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dashboard showed an hour-old result as one of this moment."""
    await stream_of(client, "orders")
    now_s = 0.0
    search = LostLedgerSearch(lambda: now_s, wait_s=60)
    await search.of(client)

    def away(*_: object) -> None:
        raise MetadataUnavailableError("gone")

    monkeypatch.setattr(client.metadata, "list_ledgers", away)
    for passed in (1, 2):
        now_s += LOST_INTERVAL_S
        found = await search.of(client)
        assert found is not None
        assert (found.whole, search.age_s) == (True, passed * LOST_INTERVAL_S)
    await search.close()


async def test_a_lost_last_segment_has_no_position_after_it(client: Client) -> None:
    streams = await stream_of(client, "orders")
    segments = await streams.segments("orders")
    await client.delete_ledger(segments[2].ledger_id)
    [one] = (await looked(client)).lost
    assert one.after == ""
    assert one.part == (
        f"segment 3, 1 record from position {segments[2].first_dlsn} to {segments[2].last_dlsn}"
    )
    facts = await stream_statistics(streams, "orders", b"")
    assert facts.lost_as_json() == [
        {"number": 3, "ledger_id": segments[2].ledger_id, "what": one.part}
    ]


async def test_truncated_segments_are_not_reported_as_lost(client: Client) -> None:
    streams = await stream_of(client, "orders")
    segments = await streams.segments("orders")
    await streams.truncate("orders", DLSN(3, 0, 0))
    for segment in segments[:2]:
        await client.delete_ledger(segment.ledger_id)
    assert (await looked(client)).count == 0


async def test_lost_ledgers_of_objects_and_datasets_are_reported(client: Client) -> None:
    objects = Objects(client)
    kept = await objects.put("jobs/1", b"a")
    gone = await objects.put("jobs/deep/2", b"b")
    await client.datasets.publish("flights", [DatasetLedger(kept.ledger_id, 0, 0, 10, 1)])
    await client.datasets.publish("trains", [DatasetLedger(gone.ledger_id, 0, 0, 10, 1)])
    await client.delete_ledger(gone.ledger_id)
    found = await looked(client)
    assert dict(found.counts) == {"object": 1, "dataset": 1}
    assert [str(one.owner) for one in found.lost] == [
        "dataset trains",
        "object jobs/deep/2 in bucket default",
    ]


async def test_a_record_that_cannot_be_read_does_not_hide_the_others(client: Client) -> None:
    streams = await stream_of(client, "aaa")
    await stream_of(client, "bbb")
    await client.delete_ledger((await streams.segments("bbb"))[0].ledger_id)
    paths = StreamPaths(NAMESPACE, "aaa")
    first, *_ = await client.metadata.tree.children(paths.segments)
    await client.metadata.tree.commit(Put(paths.segment(first), b"nonsense"))
    await Objects(client).put("one", b"1")
    await client.metadata.write_value(head_key("default", "two"), b"nonsense", None)
    found = await looked(client)
    assert found.count == 1
    assert found.unreadable_count == 2
    assert {one.owner.name for one in found.unreadable} == {"two", "/streams/aaa"}


async def test_no_ledger_metadata_is_read_if_nothing_is_lost(client: Client) -> None:
    await stream_of(client, "orders")
    await Objects(client).put("one", b"1")
    store = client.metadata

    async def never(ledger_id: int) -> None:
        raise AssertionError(f"the metadata of ledger {ledger_id} was read")

    store.read_ledger = never  # type: ignore[assignment, method-assign]
    assert (await looked(client)).records >= 2


async def test_explain_and_the_metrics_report_lost_ledgers(client: Client) -> None:
    streams = await stream_of(client, "Orders")
    [_, segment, _] = await streams.segments("Orders")
    await client.delete_ledger(segment.ledger_id)

    async def nothing(url: str) -> str:
        return ""

    view = ClusterView(SystemClock().monotonic, nothing, wait_s=10)
    seen = await view.look(client)
    [problem] = [one for one in seen.problems if "not exist" in one.what]
    assert problem.severity == "bad"
    assert problem.what.startswith("Stream Orders in namespace /streams needs a ledger that")
    assert f"ledger {segment.ledger_id} (segment 2, 1 record" in problem.what
    assert "quire stream show Orders --namespace /streams" in problem.next
    text = exposition(cluster_metrics(seen))
    assert 'quire_cluster_ledgers_lost{owner="stream"} 1' in text
    assert 'quire_cluster_ledgers_lost{owner="dataset"} 0' in text
    assert seen.as_json()["lost_ledgers"]["count"] == 1
    assert seen.as_json()["lost_ledgers"]["age_s"] is not None
    await view.close()


async def test_an_empty_segment_node_makes_its_stream_unreadable(client: Client) -> None:
    streams = await stream_of(client, "orders")
    await stream_of(client, "returns")
    segments = await streams.segments("orders")
    other = await streams.segments("returns")
    node = StreamPaths(NAMESPACE, "orders").segment(segments[1].name)
    await client.metadata.tree.commit(Put(node, b""))
    await client.delete_ledger(other[0].ledger_id)
    found = await looked(client)
    assert dict(found.counts) == {"stream": 1}
    assert found.unreadable_count == 1
    [one] = found.unreadable
    assert "orders" in one.owner.name
    assert segments[1].name in one.why
    audited = await look_for_orphans(client, 0.0)
    assert audited.orphans == []
    assert "orders" in str(audited.skipped[0])
