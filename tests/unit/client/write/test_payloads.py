"""The values that may be appended: an entry has exactly the given bytes, or nothing was sent."""

from __future__ import annotations

import array
import asyncio
import dataclasses
from typing import Any
from unittest import mock

import pytest

from quire.client import LedgerWriter
from quire.client.write.add_session import AddSession
from quire.errors import UsageError, WriteError
from tests.support.bookies.fake_bookies import CONFIG, LEDGER, PASSWORD, FakeCluster, simulated

WIDE = memoryview(array.array("I", [1, 2, 3]))


async def read_back(client: Any) -> list[bytes]:
    reader = await client.open_ledger(LEDGER, password=PASSWORD)
    return [entry.payload async for entry in reader.read()]


async def made(client: Any) -> LedgerWriter:
    writer = await client.create_ledger(ledger_id=LEDGER, password=PASSWORD)
    assert isinstance(writer, LedgerWriter)
    return writer


@pytest.mark.parametrize("many", [False, True])
def test_a_view_of_integers_is_stored_whole(many: bool) -> None:
    """The length of such a view counts integers.

    The entry was once cut off and acknowledged with the digest of the whole.
    """

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await made(client)
            wanted = [WIDE.tobytes(), b"bdf", b"array"]
            views: list[Any] = [WIDE, memoryview(b"abcdefg")[1::2], bytearray(b"array")]
            if many:
                assert await writer.append_many(views) == 2
            else:
                assert [await writer.append(view) for view in views] == [0, 1, 2]
            assert writer.length == sum(map(len, wanted))
            await writer.close()
            assert await read_back(client) == wanted

    simulated(main)


@pytest.mark.parametrize("wrong", ["text", 5, None, [1, 2]])
def test_a_payload_that_is_not_bytes_is_refused_without_affecting_others(wrong: Any) -> None:
    """Such a payload once shifted the ids of the entries appended with it."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await made(client)
            assert writer.submit(b"good") == 0
            with pytest.raises(UsageError, match=rf"not {type(wrong).__name__}. Nothing was sent"):
                await writer.append(wrong)
            with pytest.raises(UsageError, match="Nothing was sent"):
                await writer.append_many([b"fine", wrong])
            assert await writer.append(b"other") == 1
            await writer.close()
            assert await read_back(client) == [b"good", b"other"]

    simulated(main)


@pytest.mark.parametrize("behind_a_gap", [False, True])
def test_a_payload_that_is_not_bytes_leaves_its_id_free(behind_a_gap: bool) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await client.create_ledger(
                ledger_id=LEDGER, password=PASSWORD, caller_ids=True
            )
            entry_id = 1 if behind_a_gap else 0
            wrong: Any = "text"
            with pytest.raises(UsageError, match="Nothing was sent"):
                writer.submit_at(entry_id, wrong)
            for other in {0, 1} - {entry_id}:
                writer.submit_at(other, b"other")
            writer.submit_at(entry_id, b"good")
            assert await writer.close() == 1
            assert set(await read_back(client)) == {b"good", b"other"}

    simulated(main)


def test_a_buffer_may_be_used_again_at_once() -> None:
    """Entries wait for the end of the event-loop iteration, or for a missing id before them."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            buffer = bytearray(2)
            writer = await made(client)
            for number in range(5):
                buffer[:] = b"%02d" % number
                writer.submit(buffer)
            await writer.close()
            assert await read_back(client) == [b"%02d" % number for number in range(5)]
            chooses = await client.create_ledger(password=PASSWORD, caller_ids=True)
            for number in reversed(range(5)):
                buffer[:] = b"%02d" % number
                chooses.submit_at(number, buffer)
            buffer[:] = b"??"
            await chooses.close()
            reader = await client.open_ledger(chooses.ledger_id, password=PASSWORD)
            found = [entry.payload async for entry in reader.read()]
            assert found == [b"%02d" % number for number in range(5)]

    simulated(main)


async def test_an_entry_that_could_not_be_sent_fails_its_caller() -> None:
    """The error once reached only the event loop, and the next entry would have got the same id."""
    cluster = await FakeCluster.made(3)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with cluster.client() as client:
        writer = await made(client)
        with mock.patch.object(AddSession, "push", side_effect=MemoryError):
            good = asyncio.ensure_future(writer.append(b"good"))
            with pytest.raises(WriteError, match=r"from 0 on could not be sent: MemoryError") as no:
                async with asyncio.timeout(10):
                    await good
        assert not no.value.outcome_known
        with pytest.raises(WriteError):
            await writer.append(b"other")


@pytest.mark.parametrize("empty", [False, True])
def test_append_many_is_not_affected_by_later_changes_of_its_list(empty: bool) -> None:
    """The caller empties the list while the call waits. An empty list needs no acknowledgement."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        config = dataclasses.replace(CONFIG, max_unacked_bytes=10)
        async with cluster.client(config) as client:
            writer = await made(client)
            await writer.append(b"first")
            for bookie in cluster.bookies.values():
                bookie.holds_acks = True
            writer.submit(bytes(10))
            await asyncio.sleep(0.1)
            payloads = [] if empty else [b"one", b"two"]
            appended = asyncio.ensure_future(writer.append_many(payloads))
            await asyncio.sleep(0.1)
            assert appended.done() is empty
            payloads.clear()
            for bookie in cluster.bookies.values():
                bookie.release()
                bookie.holds_acks = True
            await asyncio.sleep(0.1)
            assert appended.done() is empty  # the entries were sent, and nobody has answered
            for bookie in cluster.bookies.values():
                bookie.release()
            assert await appended == (1 if empty else 3)
            await writer.close()

    simulated(main)
