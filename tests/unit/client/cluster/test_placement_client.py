"""Placement in a client: where it gets locations, what it reports, and custom policies."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from quire._runtime.clock import SystemClock
from quire.client import Client
from quire.client.client import pool_of
from quire.client.cluster.location_files import FileLocations
from quire.config import ClientConfig, PlacementConfig
from quire.core.placement import Level
from quire.core.placement.settings import parse_placement
from quire.errors import (
    BookieUnavailableError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UsageError,
)
from quire.metadata.common import WatchHandle
from quire.metadata.interface import BookieAddress, Bookies, Registration
from quire.metadata.tree import Put
from quire.replication.moves.preflight import Shape, Shapes, no_place
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore
from tests.support.waiting import until

PATIENCE_S = 60
SHORT_S = 0.05
"""The time limit of impossible requests."""
GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "cluster" / "placement-policy.md"


class Cluster:
    """Bookies that are registered and nothing else: no entry is written here."""

    def __init__(self) -> None:
        self.memory = MemoryCluster("placement", clock=SystemClock(), rng=random.Random(1))
        self.memory.initialise()
        self.store = MemoryStore(self.memory)
        self.registrations: dict[str, Registration] = {}

    async def add(self, *names: str) -> None:
        """'b1', or 'b1@host'."""
        for name in names:
            bookie, _, host = name.partition("@")
            address = BookieAddress(bookie, host or f"host-{bookie}", 3181)
            self.registrations[bookie] = await self.store.register_bookie(address)

    async def remove(self, bookie: str) -> None:
        await self.registrations.pop(bookie).close()

    @asynccontextmanager
    async def client(
        self, locations: str | Mapping[str, str] = "", wait_s: float = PATIENCE_S, **settings: Any
    ) -> AsyncIterator[Client]:
        placement = PlacementConfig(locations=locations, **settings)
        config = ClientConfig(placement=placement, bookies_wait_s=wait_s)
        client = Client(MemoryStore(self.memory), config=config, rng=random.Random(2))
        try:
            yield client
        finally:
            await client.close()

    async def close(self) -> None:
        for registration in self.registrations.values():
            await registration.close()
        await self.store.close()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await made.close()


async def ensemble(client: Client, size: int = 2) -> tuple[str, ...]:
    writer = await client.create_ledger(ensemble_size=size, write_quorum=size, ack_quorum=1)
    writer.abandon()
    return writer.metadata.last_segment.ensemble


# -- sources of locations ---------------------------------------------------------------------


async def test_locations_from_a_mapping_can_be_changed(cluster: Cluster) -> None:
    await cluster.add("b1", "b2@h", "b3")
    async with cluster.client({"b1": "/a", "h": "/a", "b3": "b"}) as client:
        for _ in range(10):
            assert "b3" in await ensemble(client)
        assert client.placement.location("b2") == "/a"
        client.placement.relocate({"b1": "/a", "b2": "/b", "b3": "/b"})
        for _ in range(10):
            assert "b1" in await ensemble(client)
        with pytest.raises(UsageError, match="not a network location"):
            client.placement.relocate({"b1": "//"})
        assert client.placement.location("b1") == "/a"


async def test_the_table_in_the_metadata_store_is_followed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.add("b1", "b2", "b3")
    tree = cluster.store.tree
    await tree.make_path("/bookies", b'{"g": {"b1": {"rack": "a"}, "b2": {"rack": "a"}}}')
    async with cluster.client("metadata") as client:
        assert "b3" in await ensemble(client)
        await tree.commit(Put("/bookies", b'{"g": {"b3": {"rack": "/b"}, "b2": {"rack": "/b"}}}'))
        await until(lambda: client.placement.location("b3") == "/b")
        assert "b1" in await ensemble(client)
        await tree.commit(Put("/bookies", b"[]"))
        await until(lambda: client.placement.location_failures == 1)
        assert client.placement.location("b3") == "/b"
        assert "the node /bookies" in caplog.text
        await tree.commit(Put("/bookies", b"{}"))
        await until(lambda: client.placement.location("b3") == "/default-rack")
        assert client.placement.location_trouble == ""


async def test_a_table_in_a_file_is_followed(cluster: Cluster, tmp_path: Path) -> None:
    table = tmp_path / "racks"
    table.write_text("b1 /a\nhost-b2 /a\nb3 /b\n")
    await cluster.add("b1", "b2", "b3")
    async with cluster.client(f"table:{table}", table_check_s=0.01) as client:
        assert "b3" in await ensemble(client)
        fresh = tmp_path / "fresh"
        fresh.write_text("b1 /a\nb2 /b\nb3 /b\n")
        os.replace(fresh, table)
        await until(lambda: client.placement.location("b2") == "/b")
        assert "b1" in await ensemble(client)
        for text, why in (("b1\n", "line 1"), ("", "the file has no locations")):
            fresh.write_text(text)
            os.replace(fresh, table)
            await until(lambda why=why: why in client.placement.location_trouble)
            assert client.placement.location("b2") == "/b"
        assert client.placement.location_failures > 0
        table.unlink()
        await until(lambda: "No such file" in client.placement.location_trouble)
        assert client.placement.location("b2") == "/b"


@pytest.mark.parametrize("text", ["b1\n", "", "b1 /a /b\n", "\xff\xfe"])
async def test_an_unusable_table_in_a_file_stays_reported_until_it_is_replaced(
    tmp_path: Path, text: str
) -> None:
    """It does not count as read, so each look at it fails, also if it does not change again."""
    table = tmp_path / "racks"
    locations = FileLocations(str(table), PlacementConfig())
    times_s = count(1)

    def write(text: str) -> None:
        table.write_bytes(text.encode("latin-1"))
        os.utime(table, (0, next(times_s)))  # the clock of a file system is coarse

    for failures in range(1, 4):
        write(text)
        for looks in range(1, 4):
            await locations.learn(())
            assert (locations.trouble != "", locations.failures) == (True, 3 * failures - 3 + looks)
        write(f"b1 /rack-{failures}\n")
        for _ in range(2):
            await locations.learn(())
            assert (locations.trouble, locations.find("b1", "h")) == ("", f"/rack-{failures}")


@pytest.mark.parametrize("source", ["a mapping", "lines", "TOML", "a script", "the metadata"])
async def test_all_bookies_of_a_host_have_the_rack_of_the_host(
    cluster: Cluster, tmp_path: Path, source: str
) -> None:
    """A service of several bookies has one host. An entry for the host is enough for all."""
    await cluster.add("a-0@a", "a-1@a", "b-0@b", "b-1@b")
    table = tmp_path / "racks"
    locations: str | dict[str, str] = {"a": "/r1", "b": "/r2"}
    if source == "lines":
        table.write_text("a /r1\nb /r2\n")
        locations = f"table:{table}"
    elif source == "TOML":
        table = tmp_path / "racks.toml"
        table.write_text('[locations]\na = "/r1"\nb = "/r2"\n')
        locations = f"table:{table}"
    elif source == "a script":
        locations = script(table, "for name in sys.argv[1:]: print({'a': '/r1', 'b': '/r2'}[name])")
    elif source == "the metadata":
        racks = b'{"g": {"a": {"rack": "/r1"}, "b": {"rack": "/r2"}}}'
        await cluster.store.tree.make_path("/bookies", racks)
        locations = "metadata"
    async with cluster.client(
        locations, policy="rack-aware", min_racks=2, enforce_racks=True
    ) as client:
        for _ in range(10):
            assert {bookie[0] for bookie in await ensemble(client)} == {"a", "b"}
        found = {name: client.placement.location(name) for name in ("a-0", "a-1", "b-0", "b-1")}
    assert found == {"a-0": "/r1", "a-1": "/r1", "b-0": "/r2", "b-1": "/r2"}


async def test_a_table_by_bookie_names_each_bookie_of_a_host(
    cluster: Cluster, tmp_path: Path
) -> None:
    """An entry for one bookie says nothing about the others of its host."""
    await cluster.add("a-0@a", "a-1@a", "b-0@b", "b-1@b")
    table = tmp_path / "racks"
    table.write_text("a-0 /r1\na-1 /r1\nb-0 /r2\nb /r3\n")
    async with cluster.client(f"table:{table}") as client:
        await ensemble(client)
        found = {name: client.placement.location(name) for name in ("a-0", "a-1", "b-0", "b-1")}
    assert found == {"a-0": "/r1", "a-1": "/r1", "b-0": "/r2", "b-1": "/r3"}


async def test_locations_are_read_from_a_toml_table(cluster: Cluster, tmp_path: Path) -> None:
    table = tmp_path / "racks.toml"
    table.write_text('[locations]\nb1 = "/a"\nb2 = "/b"\n')
    await cluster.add("b1", "b2")
    async with cluster.client(f"table:{table}") as client:
        await ensemble(client)
        assert client.placement.location("b2") == "/b"


def script(path: Path, body: str) -> str:
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"script:{path}"


async def test_a_location_script_is_called_with_a_limited_number_of_names(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The names are passed in parts, and no shell sees them."""
    calls = tmp_path / "calls"
    source = script(
        tmp_path / "where",
        f"open({str(calls)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "for name in sys.argv[1:]: print('/rack-' + name[-1])",
    )
    await cluster.add("b1", "b2", "b3", "b4@$(touch oops);h4", "b5")
    async with cluster.client(source, script_names_max=2) as client:
        assert len(await ensemble(client, 3)) == 3
        assert client.placement.location("b4") == "/rack-4"
        await cluster.add("b6")
        await until(lambda: client.placement.location("b6") == "/rack-6")
    parts = [line.split("host-") for line in calls.read_text().splitlines()]
    assert all(len(part) <= 3 for part in parts)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sys.exit('no\\nidea')", "exit status 1: no idea"),
        ("print('/a')", "printed 1 location, but was asked for 2 names"),
        ("print('//\\n//')", "not a network location"),
        ("print('x' * 100_000)", "printed 100001 bytes, but at most 65536 are read"),
        ("os.fork() or time.sleep(600)\ntime.sleep(600)", "did not answer within 0.5 s"),
    ],
)
async def test_a_failing_location_script_changes_no_locations(
    cluster: Cluster, tmp_path: Path, body: str, why: str
) -> None:
    good = tmp_path / "good"
    good.touch()
    body = f"if os.path.exists({str(good)!r}): print('/a\\n/b'); sys.exit()\n{body}"
    source = script(tmp_path / "where", body)
    await cluster.add("b1", "b2")
    limits = {"script_refresh_s": 0.01, "script_timeout_s": 0.5}
    async with cluster.client(source, **limits) as client:
        await until(lambda: client.placement.location("b2") == "/b")
        good.unlink()
        await until(lambda: why in client.placement.location_trouble)
        assert client.placement.location("b2") == "/b"
        assert client.placement.location_failures > 0
        good.touch()
        await until(lambda: client.placement.location_trouble == "")


async def test_a_missing_location_script_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.add("b1", "b2")
    async with cluster.client(f"script:{tmp_path}/nowhere") as client:
        assert len(await ensemble(client)) == 2
        assert client.placement.location("b1") == "/default-rack"
        assert "nowhere" in client.placement.location_trouble


async def test_invalid_location_sources_are_refused(cluster: Cluster) -> None:
    for source in ("racks.txt", "table:", "zk:/bookies", "metadata:bookies"):
        with pytest.raises(UsageError):
            async with cluster.client(source):
                pass


async def test_a_bookie_with_a_location_of_another_depth_is_reported_and_not_chosen(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.add("b1", "b2", "b3", "b4")
    table = {"b1": "/r/a", "b2": "/r/b", "b3": "/c"}
    async with cluster.client(table, SHORT_S) as client:
        for _ in range(10):
            assert "b3" not in await ensemble(client)
        with pytest.raises(NotEnoughBookiesError, match=r"b3 \(its location /c has 1 parts, not 2"):
            await ensemble(client, 4)
    told = [r for r in caplog.records if r.levelno >= logging.WARNING and "b3" in r.getMessage()]
    assert len(told) == 1


# -- what is said -----------------------------------------------------------------------------


async def test_a_store_that_is_slow_is_not_a_cluster_without_bookies(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first list of bookies came late, and the error once said that none is writable."""
    await cluster.add("b1", "b2")

    async def away(**how: bool) -> Bookies:
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(
        MemoryStore, "watch_bookies", lambda *how, **more: WatchHandle(lambda: None)
    )
    async with cluster.client(wait_s=SHORT_S) as client:
        with monkeypatch.context() as outage:
            outage.setattr(client.metadata, "bookies", away)
            with pytest.raises(MetadataUnavailableError, match="no answer"):
                await ensemble(client)
        assert set(await ensemble(client)) == {"b1", "b2"}
        with pytest.raises(NotEnoughBookiesError, match="2 are writable"):
            await ensemble(client, 3)


async def test_too_few_racks_are_reported_with_the_writable_bookies(cluster: Cluster) -> None:
    await cluster.add("b1", "b2", "b3")
    table = {"b1": "/a", "b2": "/a", "b3": "/a"}
    async with cluster.client(table, SHORT_S, enforce_racks=True) as client:
        with pytest.raises(NotEnoughBookiesError) as raised:
            await ensemble(client, 2)
    assert str(raised.value).startswith(
        "2 bookies in 2 racks for a write quorum of 2 (minimum 2 racks, enforced) are wanted; "
        "3 are writable: rack /a: b1, b2, b3. Start bookies in other places"
    )
    assert raised.value.outcome_known  # no ledger was created


async def test_read_only_bookies_are_named_when_there_are_too_few(cluster: Cluster) -> None:
    """The error advised to start bookies in other places, although the disk of one was full."""
    await cluster.add("b1", "b2", "b3", "b4")
    await cluster.registrations["b4"].set_readonly(True)
    table = {"b1": "/a", "b2": "/a", "b3": "/b", "b4": "/b"}
    async with cluster.client(table, SHORT_S) as client:
        with pytest.raises(NotEnoughBookiesError) as raised:
            await ensemble(client, 4)
    assert str(raised.value).endswith(
        "3 are writable: rack /a: b1, b2; rack /b: b3; b4 is read-only. Start more bookies or ask "
        "for a smaller ensemble. `quire explain cluster` says why bookies are gone or read-only"
    )


async def test_a_drain_needs_another_place_only_if_racks_are_the_reason(cluster: Cluster) -> None:
    await cluster.add("b1", "b2", "b3")
    table = {"b1": "/a", "b2": "/b", "b3": "/a"}
    async with cluster.client(table, SHORT_S, enforce_racks=True) as client:
        assert set(await ensemble(client)) <= {"b1", "b2", "b3"}
        drained = Shapes("b2", {Shape(("b1", "b2"), 2, 2): {7}})
        found = await no_place(client, drained)
        assert found is not None
        assert found.remedy.startswith("Start a bookie in another place first"), "b3 is in /a"
        await cluster.registrations["b3"].set_readonly(True)
        await until(lambda: "b3" not in client.placement.view().writable)
        found = await no_place(client, drained)
        assert found is not None
        assert found.remedy == "Start another bookie first"
        assert found.why.endswith("; b3 is read-only")


async def test_too_few_bookies_are_reported_without_locations(cluster: Cluster) -> None:
    await cluster.add("b1", "b2")
    async with cluster.client(wait_s=SHORT_S) as client:
        pool_of(client).mark_failed("b1")
        with pytest.raises(
            NotEnoughBookiesError, match=r"2 are writable: b1 \(failed 0 s ago\), b2"
        ):
            await ensemble(client, 3)


async def test_the_adherence_of_a_ledger_to_the_policy_is_judged(cluster: Cluster) -> None:
    await cluster.add("b1", "b2", "b3")
    async with cluster.client({"b1": "/a", "b2": "/a", "b3": "/b"}) as client:
        await ensemble(client)
        found = client.placement.adherence(("b1", "b2"), 2, 2)
        assert found.level is Level.FAIL
        assert found.reason == "b1, b2 in /a: 1 rack for a write quorum of 2, where 2 are wanted"
        assert client.placement.adherence(("b1", "b3"), 2, 2).level is Level.STRICT
        # A bookie that is gone keeps its location.
        await cluster.remove("b3")
        await until(lambda: "b3" not in pool_of(client).bookies.writable)
        assert client.placement.adherence(("b1", "b3"), 2, 2).level is Level.STRICT
        assert client.placement.location("b3") == "/b"
        resting = client.placement.view(frozenset({"b2"}))
        assert "b2" not in resting.writable
        assert resting.find("b2").location == "/a"
    async with cluster.client() as client:
        assert client.placement.adherence(("b1", "b2"), 2, 2).level is Level.STRICT


async def test_quorums_that_the_policy_cannot_satisfy_are_refused(cluster: Cluster) -> None:
    await cluster.add("b1", "b2", "b3")
    async with cluster.client(policy="zone-aware") as client:
        with pytest.raises(UsageError, match="strict_zones requires"):
            await ensemble(client, 2)


# -- weights ----------------------------------------------------------------------------------


async def test_free_space_of_bookies_is_requested_periodically(cluster: Cluster) -> None:
    await cluster.add("b1", "b2", "b3")
    free = {"b1": 1, "b2": 1_000_000}
    asked: list[str] = []

    async def tell(bookie: str) -> int:
        asked.append(bookie)
        if bookie not in free:
            raise BookieUnavailableError(f"bookie {bookie} is away")
        return free[bookie]

    async with cluster.client(disk_weighted=True, weight_refresh_s=0.05) as client:
        client.placement._ask_free_bytes = tell
        await until(lambda: asked.count("b3") > 1)
        chosen = [(await ensemble(client, 1))[0] for _ in range(40)]
        assert chosen.count("b2") > 30
        free["b1"], free["b2"] = 1_000_000, 1
        rounds = asked.count("b3")
        await until(lambda: asked.count("b3") > rounds + 1)
        chosen = [(await ensemble(client, 1))[0] for _ in range(40)]
        assert chosen.count("b1") > 30


async def test_free_space_is_requested_again_after_an_unexpected_error(cluster: Cluster) -> None:
    """The task ended, and the weights stayed as they were for the life of the client."""
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    await cluster.add("b1")
    asked: list[str] = []

    async def tell(bookie: str) -> int:
        asked.append(bookie)
        raise KeyError("a defect")

    async with cluster.client(disk_weighted=True, weight_refresh_s=0.01) as client:
        client.placement._ask_free_bytes = tell
        await until(lambda: len(asked) > 2)
        assert client.placement._unexpected.count >= 2


# -- reading ----------------------------------------------------------------------------------


async def test_reads_prefer_near_healthy_and_writable_bookies(cluster: Cluster) -> None:
    await cluster.add("b1", "b2", "b3", "b4")
    table = {"b1": "/x/1", "b2": "/y/1", "b3": "/y/2", "b4": "/z/1"}
    async with cluster.client(table, policy="region-aware", own_location="/y/1") as client:
        await ensemble(client)
        pool, all_of_them = pool_of(client), ["b1", "b2", "b3", "b4"]
        assert pool.read_order(all_of_them) == ["b2", "b1", "b3", "b4"]
        assert pool.read_order(all_of_them, near="b4") == ["b4", "b2", "b1", "b3"]
        pool.health.overtaken("b2")
        assert pool.read_order(all_of_them) == ["b1", "b3", "b4", "b2"]
        await cluster.registrations["b3"].set_readonly(True)
        await cluster.remove("b1")
        await until(lambda: not {"b1", "b3"} & pool.bookies.writable.keys())
        assert pool.read_order(all_of_them) == ["b4", "b3", "b2", "b1"]


# -- one line, and one's own ------------------------------------------------------------------


def test_a_placement_is_parsed_from_one_line() -> None:
    line = "region-aware, regions=x;y, min_regions=1, disk_weighted, weight_multiple_max=2.5"
    assert parse_placement(line) == PlacementConfig(
        policy="region-aware", regions=("x", "y"), min_regions=1, disk_weighted=True,
        weight_multiple_max=2.5,
    )  # fmt: skip
    assert parse_placement("any,local_reads=no").local_reads is False
    assert parse_placement("mine,colour=red").options == {"colour": "red"}
    for bad, advice in (
        ("any,colour=red", "It has policy, "),
        ("any,min_racks=many", "Use a whole number"),
        ("any,enforce_racks=perhaps", "Use true or false"),
        ("any,weight_multiple_max=much", "Use a number"),
    ):
        with pytest.raises(UsageError, match=advice):
            parse_placement(bad)


@pytest.mark.parametrize(
    "name", [one.name for one in fields(PlacementConfig) if isinstance(one.default, int | float)]
)
def test_each_number_and_switch_of_a_placement_can_be_given_in_one_line(name: str) -> None:
    default = getattr(PlacementConfig(), name)
    assert getattr(parse_placement(f"any,{name}={str(default).lower()}"), name) == default


async def test_an_unknown_policy_is_refused(cluster: Cluster) -> None:
    with pytest.raises(
        UsageError, match=r"'mypkg' is not a placement policy\. Choose one of rack-aware"
    ):
        async with cluster.client(policy="mypkg"):
            pass


async def test_a_custom_policy_from_the_guide_works(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/guides/cluster/placement-policy.md is installed like a package."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (source,) = [block for block in blocks if "DomainPolicy" in block]
    module = re.search(r"^# (\w+)\.py$", source, re.MULTILINE)
    point = re.search(r'^(\w+) = "(\w+:\w+)"$', GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert module is not None
    assert point is not None
    (tmp_path / f"{module[1]}.py").write_text(source)
    about = tmp_path / "example-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[quire.placement]\n{point[1]} = {point[2]}\n")
    monkeypatch.syspath_prepend(tmp_path)

    await cluster.add("b1", "b2", "b3", "b4")
    table = {"b1": "/a", "b2": "/b", "b3": "/old-1", "b4": "/c"}
    async with cluster.client(table, SHORT_S, policy=point[1], options={"not": "/old"}) as client:
        for _ in range(10):
            assert "b3" not in await ensemble(client, 3)
        with pytest.raises(NotEnoughBookiesError, match="4 bookies outside /old are wanted"):
            await ensemble(client, 4)
    sys.modules.pop(module[1], None)


class Broken:
    """A policy with everything that can be wrong."""

    default_location = "/default-rack"
    parts = None

    def __init__(self, chosen: object) -> None:
        self.chosen = chosen

    def check(self, *quorums: int) -> None:
        pass

    def fill(self, *question: object) -> object:
        if isinstance(self.chosen, Exception):
            raise self.chosen
        return self.chosen


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({0: "b1", 1: "b1"}, "chose a bookie twice"),
        ({0: "b1", 1: "b9"}, "chose bookie b9, which is not writable or must not be chosen"),
        (KeyError("oops"), r"which another package provides, failed: KeyError\('oops'\)"),
    ],
)
async def test_invalid_choices_and_errors_of_a_custom_policy_are_reported(
    cluster: Cluster, chosen: object, why: str
) -> None:
    await cluster.add("b1", "b2")
    async with cluster.client() as client:
        placement = client.placement
        await until(lambda: len(pool_of(client).bookies.writable) == 2)
        placement.policy = Broken(chosen)  # type: ignore[assignment]
        placement.config = PlacementConfig(policy="broken")
        with pytest.raises(UsageError, match=f"placement policy 'broken',? {why}"):
            await ensemble(client)
