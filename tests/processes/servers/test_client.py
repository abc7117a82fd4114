"""The promises of the client's API about ledgers, errors and its two forms, on a real cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

import quire
from quire.errors import (
    ClientClosedError,
    ClusterNotInitialisedError,
    LedgerClosedError,
    LedgerExistsError,
    LedgerFencedError,
    MetadataURIError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ReadError,
    UnauthorizedError,
    UsageError,
)
from quire.testing.cluster import LocalCluster

pytestmark = pytest.mark.slow

SHAPES = [(1, 1, 1), (3, 3, 2), (3, 3, 3), (3, 2, 2), (3, 2, 1)]


def payloads(count: int) -> list[bytes]:
    return [b"%d;" % k * (k % 97) for k in range(count)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("digest", list(quire.DigestType))
async def test_written_entries_are_read(
    quire_client: quire.Client, shape: tuple[int, int, int], digest: quire.DigestType
) -> None:
    sent = payloads(400)
    ensemble, write, ack = shape
    writer = await quire_client.create_ledger(
        ensemble_size=ensemble,
        write_quorum=write,
        ack_quorum=ack,
        digest=digest,
        password=b"secret",
        custom={"owner": b"tests"},
    )
    assert await writer.append(sent[0]) == 0
    assert await writer.append_many(sent[1:300]) == 299
    assert await asyncio.gather(*map(writer.append, sent[300:])) == list(range(300, 400))
    assert writer.last_add_confirmed == 399
    assert await writer.close() == 399
    assert await writer.close() == 399
    reader = await quire_client.open_ledger(writer.ledger_id, password=b"secret")
    assert reader.ledger_closed
    assert reader.custom == {"owner": b"tests"}
    assert reader.length == sum(map(len, sent))
    entries = [entry async for entry in reader.read()]
    assert [entry.payload for entry in entries] == sent
    assert [entry.entry_id for entry in entries] == list(range(400))
    assert [entry.payload async for entry in reader.read(100, 110)] == sent[100:111]
    assert (await reader.read_entry(7)).payload == sent[7]
    assert (await reader.read_last()).payload == sent[-1]


async def test_an_empty_ledger_is_read(quire_client: quire.Client) -> None:
    writer = await quire_client.create_ledger()
    assert await writer.append_many([]) == -1
    assert await writer.flush() == -1
    assert await writer.close() == -1
    reader = await quire_client.open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    assert [entry async for entry in reader.read()] == []
    with pytest.raises(NoSuchEntryError, match="has no entries"):
        await reader.read_last()


async def test_the_last_entry_of_an_open_ledger_is_not_denied(quire_client: quire.Client) -> None:
    """A reader that does not know of an acknowledged entry does not say that there is none."""
    writer = await quire_client.create_ledger()
    await writer.append(b"acknowledged, but no entry carries this LAC yet")
    reader = await quire_client.open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    with pytest.raises(ReadError, match=r"no entry of ledger .* is known") as caught:
        await reader.read_last()
    assert not isinstance(caught.value, NoSuchEntryError)
    assert caught.value.remedy == "Call refresh() for a newer view, or wait for the writer"
    await writer.close()
    await reader.refresh()
    assert (await reader.read_last()).entry_id == 0


async def test_a_ledger_can_be_read_while_it_is_written(quire_client: quire.Client) -> None:
    """A reader without recovery sees what is acknowledged, and disturbs nothing."""
    writer = await quire_client.create_ledger()
    await writer.append_many(payloads(10))
    await writer.append(b"carries the LAC of the ten before it")
    reader = await quire_client.open_ledger(writer.ledger_id)
    assert not reader.ledger_closed
    assert reader.last_add_confirmed == 9
    assert [entry.payload async for entry in reader.read()] == payloads(10)
    with pytest.raises(ReadError, match="only entries up to 9 are known to be acknowledged"):
        await reader.read_entry(10)
    await writer.append(b"and one more")
    assert await reader.refresh() == 10
    await writer.close()
    assert await reader.refresh() == 11
    assert reader.ledger_closed


async def test_opening_with_recovery_fences_the_writer(quire_client: quire.Client) -> None:
    writer = await quire_client.create_ledger()
    await writer.append_many(payloads(50))
    one, other = await asyncio.gather(
        quire_client.open_ledger(writer.ledger_id, recover=True),
        quire_client.open_ledger(writer.ledger_id, recover=True),
    )
    assert one.last_add_confirmed == other.last_add_confirmed == 49
    with pytest.raises(LedgerFencedError) as failed:
        await writer.append(b"too late")
    assert not failed.value.outcome_known
    assert [entry.payload async for entry in one.read()] == payloads(50)


async def test_ledgers_are_listed_and_deleted(quire_client: quire.Client) -> None:
    writer = await quire_client.create_ledger()
    await writer.close()
    chosen = writer.ledger_id + 1_000
    other = await quire_client.create_ledger(ledger_id=chosen)
    with pytest.raises(LedgerExistsError):
        await quire_client.create_ledger(ledger_id=chosen)
    listed = [ledger async for ledger in quire_client.list_ledgers(writer.ledger_id)]
    assert listed[0] == writer.ledger_id
    assert chosen in listed
    assert listed == sorted(listed)
    await other.close()
    await quire_client.delete_ledger(chosen)
    await quire_client.delete_ledger(chosen)
    with pytest.raises(NoSuchLedgerError, match=str(chosen)):
        await quire_client.open_ledger(chosen)


async def test_errors_name_the_ledger_and_entry(quire_client: quire.Client) -> None:
    writer = await quire_client.create_ledger(password=b"right")
    await writer.append(b"x")
    with pytest.raises(
        UnauthorizedError, match=f"the password for ledger {writer.ledger_id} is wrong"
    ):
        await quire_client.open_ledger(writer.ledger_id, password=b"wrong", recover=True)
    with pytest.raises(UsageError, match="must satisfy ensemble_size"):
        await quire_client.create_ledger(ensemble_size=2, write_quorum=3, ack_quorum=2)
    with pytest.raises(UsageError, match="is not a digest type"):
        await quire_client.create_ledger(digest="md5")
    with pytest.raises(NotEnoughBookiesError, match="9 bookies are wanted; 3 are writable"):
        await quire_client.create_ledger(ensemble_size=9)
    await writer.close()
    with pytest.raises(LedgerClosedError, match="is closed"):
        await writer.append(b"y")
    reader = await quire_client.open_ledger(writer.ledger_id, password=b"right")
    with pytest.raises(NoSuchEntryError, match="is closed and ends at entry 0"):
        await reader.read_entry(1)
    with pytest.raises(UsageError):
        _ = [entry async for entry in reader.read(0, -2)]
    reader.close()
    with pytest.raises(UsageError, match="is closed"):
        await reader.read_entry(0)


async def test_a_cancelled_append_disturbs_nobody(quire_client: quire.Client) -> None:
    writer = await quire_client.create_ledger()
    tasks = [asyncio.ensure_future(writer.append(b"%d" % k)) for k in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [d for d in done if isinstance(d, int)]
    last = await writer.close()
    reader = await quire_client.open_ledger(writer.ledger_id)
    found = [entry.payload async for entry in reader.read()]
    assert len(found) == last + 1
    assert all(found[entry_id] == b"%d" % k for k, entry_id in enumerate(done) if
               isinstance(entry_id, int))  # fmt: skip


async def test_appends_wait_at_the_limit_of_unacknowledged_bytes(
    quire_cluster: LocalCluster,
) -> None:
    """A stopped bookie holds up at most the limit. Then it is replaced or left out."""
    config = quire.ClientConfig(add_timeout_s=1.0, max_unacked_bytes=256 * 1024)
    async with quire.connect(quire_cluster.uri, config=config) as client:
        writer = await client.create_ledger()
        await writer.append(b"connected")
        stopped = quire_cluster.bookies[0]
        stopped.pause()
        try:
            body = b"x" * 16 * 1024
            for _ in range(100):
                await writer.append(body)
        finally:
            stopped.resume()
        assert await writer.close() == 100
        reader = await client.open_ledger(writer.ledger_id)
        assert len([entry async for entry in reader.read()]) == 101


async def test_a_ledger_is_read_as_arrow_pandas_and_polars(quire_client: quire.Client) -> None:
    sent = payloads(1_000)
    writer = await quire_client.create_ledger()
    await writer.append_many(sent)
    await writer.close()
    reader = await quire_client.open_ledger(writer.ledger_id)
    table = await reader.to_arrow()
    assert table.column_names == ["ledger_id", "entry_id", "length", "value"]
    assert table["value"].to_pylist() == sent
    assert table["length"].to_pylist() == [len(body) for body in sent]
    frame = await reader.to_pandas(10, 19)
    assert frame["entry_id"].tolist() == list(range(10, 20))
    assert (await reader.to_polars(990)).height == 10


async def test_invalid_metadata_uris_are_refused(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.db"
    with pytest.raises(ClusterNotInitialisedError, match=r"nothing\.db"):
        await quire.connect(f"sqlite:///{missing}")
    assert not missing.exists()
    with pytest.raises(MetadataURIError):
        await quire.connect("bookkeeper://somewhere")


async def test_a_closed_client_raises_client_closed(quire_cluster: LocalCluster) -> None:
    client = await quire.connect(quire_cluster.uri)
    writer = await client.create_ledger()
    await client.close()
    await client.close()
    with pytest.raises(ClientClosedError):
        await client.create_ledger()
    async with quire.connect(quire_cluster.uri) as other:
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == -1


# -- the blocking twin ------------------------------------------------------------------------


def test_blocking_has_the_same_names(quire_blocking_client: quire.blocking.Client) -> None:
    sent = payloads(300)
    with quire_blocking_client.create_ledger(custom={"k": b"v"}) as writer:
        assert writer.append(sent[0]) == 0
        assert writer.append_many(sent[1:]) == 299
    reader = quire_blocking_client.open_ledger(writer.ledger_id)
    assert [entry.payload for entry in reader.read()] == sent
    assert reader.read_last().entry_id == 299
    assert reader.to_arrow().num_rows == 300
    assert writer.ledger_id in quire_blocking_client.list_ledgers()
    assert quire_blocking_client.ledger_metadata(writer.ledger_id).closed
    assert len(quire_blocking_client.bookies().writable) == 3
    quire_blocking_client.delete_ledger(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        quire_blocking_client.open_ledger(writer.ledger_id)
    for name in ("create_ledger", "open_ledger", "delete_ledger", "list_ledgers", "bookies",
                 "ledger_metadata", "close", "datasets"):  # fmt: skip
        assert hasattr(quire.Client, name)
        assert hasattr(quire.blocking.Client, name)


async def test_the_blocking_client_works_inside_a_running_event_loop(
    quire_blocking_client: quire.blocking.Client,
) -> None:
    """A notebook has a running event loop."""
    with quire_blocking_client.create_ledger() as writer:
        assert writer.append(b"from within a loop") == 0


def test_many_threads_share_a_blocking_client(quire_blocking_client: quire.blocking.Client) -> None:
    with quire_blocking_client.create_ledger() as writer:
        ids: list[int] = []
        threads = [
            threading.Thread(target=lambda: ids.extend(writer.append(b"t") for _ in range(50)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ids) == list(range(200))


def test_the_blocking_client_works_after_a_fork(
    quire_blocking_client: quire.blocking.Client,
) -> None:
    """The child has its own loop and connections. A writer stays with its process."""
    client = quire_blocking_client
    writer = client.create_ledger()
    writer.append(b"parent")
    done = client.create_ledger()
    done.append_many(payloads(20))
    done.close()
    reader = client.open_ledger(done.ledger_id)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert [entry.payload for entry in reader.read()] == payloads(20)
            with client.create_ledger() as own:
                assert own.append(b"child") == 0
            with pytest.raises(UsageError, match="belongs to process"):
                writer.append(b"not mine")
            status = 0
        finally:
            os._exit(status)
    watchdog = threading.Timer(60, os.kill, (child, signal.SIGKILL))
    watchdog.start()
    _, status = os.waitpid(child, 0)
    watchdog.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
    assert writer.append(b"parent again") == 1
    writer.close()
