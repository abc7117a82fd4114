"""Apache's client and ours use one cluster's metadata.

The tests cover each ledger manager, ids from one counter, and what the other side has written. No
bookies are needed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jpype
import pytest

from quire._runtime.clock import SystemClock
from quire.codec.metadata import layout
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.errors import NoSuchLedgerError
from quire.metadata.interface import BookieAddress
from quire.metadata.uri import parse_uri
from quire.metadata.zookeeper.server import ZooKeeperServer
from quire.metadata.zookeeper.store import ZooKeeperStore
from tests.support.interop.apache_java import ApacheClient, from_java, java, to_java
from tests.support.interop.sides import Shape
from tests.support.long import long_after

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).parents[1] / "golden"
BOOKIE = BookieAddress("rack-1:bookie-1", "127.0.0.1", 1)
ONE = Shape(1, 1, 1)
OURS = LedgerMetadata(1, 1, 1, (Segment(0, (BOOKIE.bookie_id,)),), password=b"p")
CLOSE_S = 30.0
MANAGERS = {
    "hierarchical": layout.HIERARCHICAL,
    "longhierarchical": layout.LONG_HIERARCHICAL,
    "flat": layout.FLAT,
    "legacyhierarchical": layout.LEGACY_HIERARCHICAL,
}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@dataclass
class Both:
    manager: str
    store: ZooKeeperStore
    java: ApacheClient
    uri: str

    async def our_ids(self) -> list[int]:
        ranges = [ledgers async for ledgers in self.store.list_ledgers()]
        return [ledger_id for ledgers in ranges for ledger_id in ledgers.ledger_ids]

    def java_ids(self) -> list[int]:
        ranges = self.java.java.getLedgerManager().getLedgerRanges(0)
        found: list[int] = []
        while ranges.hasNext():
            found += sorted(int(ledger_id) for ledger_id in ranges.next().getLedgers())
        return found

    async def create(self, metadata: LedgerMetadata = OURS) -> int:
        return (await self.store.create_ledger(metadata))[0]

    def create_in_java(self) -> int:
        return self.java.create(ONE).ledger_id


@pytest.fixture(params=long_after(2, MANAGERS))
async def both(request: pytest.FixtureRequest, zookeeper: ZooKeeperServer) -> AsyncIterator[Both]:
    manager = request.param
    uri = f"zk+null://{zookeeper.address}/{manager}-{random.randrange(10**9)}"
    store = await ZooKeeperStore.connect(parse_uri(uri), clock=SystemClock(), rng=random.Random())
    try:
        await store.initialise()
        found = layout.encode(layout.Layout(MANAGERS[manager]))
        await store._zk.set(store._root.at("LAYOUT"), found, 0)
        await store.register_bookie(BOOKIE)
        java = ApacheClient(uri)
        yield Both(manager, store, java, uri)
        await asyncio.wait_for(asyncio.to_thread(java.java.close), CLOSE_S)
    finally:
        await store.close()


def test_java_writes_the_same_metadata_bytes_as_4_17() -> None:
    """Java of this version reads the metadata that 4.17.2 wrote, and writes the same bytes."""
    vectors = json.loads((GOLDEN / "metadata.json").read_text())["vectors"]
    stored = [one for one in vectors if one["group"] in ("ledger_metadata", "metadata_update")]
    assert len(stored) > 15
    serde = java("org.apache.bookkeeper.meta.LedgerMetadataSerDe")()
    ctime = java("java.util.Optional").of(jpype.JLong(1_111))
    for one in stored:
        data = bytes.fromhex(one["hex"])
        metadata = serde.parseConfig(to_java(data), 7, ctime)
        assert from_java(serde.serialize(metadata)) == data, one["name"]


async def test_both_sides_share_ids_and_list_all_ledgers(both: Both) -> None:
    """Both sides get ids from one counter, also long ones, and list all ledgers in order."""
    made = []
    for _ in range(3):
        made += [await both.create(), both.create_in_java()]
    if both.manager in ("hierarchical", "longhierarchical"):
        await both.store._zk.create(both.store._root.at("idgen-long"))
        fresh = ApacheClient(both.uri)
        for _ in range(3):
            made += [await both.create(), fresh.create(ONE).ledger_id]
        made.append(both.create_in_java())  # it remembers that there were no long ids
        fresh.close()
        assert made[6] == 2**32
        chosen = [2**31 - 2, 2**31 - 1, 2**40 + 7, 2**63 - 1]
    else:
        chosen = [2**31 - 2, 2**31 - 1, 10**10 - 1]
    for ledger_id in chosen:
        await both.store.create_ledger(OURS, ledger_id)
    made += chosen
    assert len(set(made)) == len(made)
    assert await both.our_ids() == both.java_ids() == sorted(made)
    for ledger_id in chosen:
        assert both.java.describe(ledger_id).shape.password == b"p"


async def test_each_side_reads_changes_and_deletes_the_others_ledgers(both: Both) -> None:
    ours, theirs = await both.create(), both.create_in_java()
    read = await both.store.read_ledger(theirs)
    assert read.value.segments == (Segment(0, (BOOKIE.bookie_id,)),)
    closed = await both.store.write_ledger(theirs, read.value.with_close(-1, 0), read.version)
    assert closed.version == 1
    described = both.java.describe(theirs)
    assert (described.state, described.last_entry_id) == ("CLOSED", -1)
    described = both.java.describe(ours)
    assert (described.state, described.segments) == ("OPEN", {0: (BOOKIE.bookie_id,)})
    both.java.delete(ours)
    with pytest.raises(NoSuchLedgerError):
        await both.store.read_ledger(ours)
    await both.store.delete_ledger(theirs)
    assert await both.our_ids() == both.java_ids() == []


@pytest.mark.parametrize("both", ["hierarchical"], indirect=True)
@pytest.mark.parametrize("version", [1, 2, 3])
async def test_each_side_keeps_the_metadata_format_of_the_other(both: Both, version: int) -> None:
    """Each side keeps the format of the other when it changes a ledger."""
    ours = replace(OURS, format_version=version)
    if version == 1:
        ours = replace(ours, digest=None, password=None)
    ledger_id = await both.create(ours)
    java = ApacheClient(both.uri, settings={"ledgerMetadataVersion": version})
    theirs = java.create(ONE).ledger_id
    created = await both.store.read_ledger(theirs)
    assert created.value.format_version == version
    for changed in (ledger_id, theirs):
        manager: Any = java.java.getLedgerManager()
        now = await both.store.read_ledger(changed)
        recovering = now.value.with_state(LedgerState.IN_RECOVERY)
        written = await both.store.write_ledger(changed, recovering, now.version)
        assert manager.readLedgerMetadata(changed).get().getValue().getState().name() == (
            "IN_RECOVERY"
        )
        assert written.value.format_version == version
        assert (
            int(manager.readLedgerMetadata(changed).get().getValue().getMetadataFormatVersion())
            == version
        )
    java.close()
