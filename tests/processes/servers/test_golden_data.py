"""This version opens data of earlier versions: bookies, SQLite, ZooKeeper, streams.

`tests/golden/make_golden.py` made the data, one directory for each version. Bookies of the version
under test start on copies of it. `tests/spark` continues a checkpoint of Spark.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import quire
from quire.cli.main import cli
from quire.errors import (
    LedgerClosedError,
    NoSuchLedgerError,
    QuireError,
    StreamConditionError,
)
from quire.streams import AtSequence, Namespace
from quire.streams.namespace.namespace import open_namespace
from quire.streams.statemachine.durable_dict import open_dict
from tests.support.long import long_after
from tests.support.processes import golden
from tests.support.processes.cli import COMMAND, Quire
from tests.support.processes.golden import SETS, GoldenCluster, entries, payload, sets_with
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

NAMESPACE, INNER, MIRROR = "/golden", "/golden/inner", "/mirror"
COLLECTS = ("--set", "gc_interval_s=0.5")
"""Bookies that delete at once what the metadata does not name: nothing that is needed may go."""


def named(golden_set: Path) -> str:
    """Return the name of a set in the names of the tests."""
    return golden_set.name


@pytest.fixture(scope="module", params=long_after(1, SETS[::-1]), ids=named)
def golden_set(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def cluster(golden_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoldenCluster]:
    """A shared cluster. Tests change only what no other test checks."""
    directory = tmp_path_factory.mktemp("golden")
    with GoldenCluster(golden_set, directory, arguments=COLLECTS) as started:
        yield started


async def read(
    cluster: GoldenCluster, ledger: golden.Json, *, recover: bool = False
) -> tuple[list[bytes], int]:
    """The entries of a ledger, and its last confirmed entry."""
    password = ledger.get("password", "").encode()
    async with quire.connect(cluster.uri) as client:
        reader = await client.open_ledger(ledger["id"], password=password, recover=recover)
        found = [bytes(entry.payload) async for entry in reader.read()]
        return found, reader.last_add_confirmed


def test_golden_data_exists() -> None:
    assert SETS


# -- directories ----------------------------------------------------------------------------------


def test_every_kind_of_file_exists_and_passes_its_check(golden_set: Path, tmp_path: Path) -> None:
    cluster = GoldenCluster(golden_set, tmp_path)
    cluster.move()
    kinds: set[str] = set()
    records: set[str] = set()
    deleted = str(cluster.expected["deleted"]["stored"])
    for name in cluster.bookies:
        looks = [
            cluster.run("bookie", "disk", "ledger", directory, deleted).status
            for directory in cluster.directories(name)
        ]
        if name == cluster.expected["killed"]:  # it dropped the ledger before
            assert 0 not in looks
        else:
            assert 0 in looks, f"{name} has nothing left to collect"
        for directory in cluster.directories(name):
            done = cluster.run("bookie", "disk", "check", directory, "--json")
            found = json.loads(done.out.splitlines()[-1])
            assert found["ok"] == (name != damaged_bookie(cluster))
            assert found["ledgers"]
            clean = Path(directory, "log", "CLEAN").exists()
            assert clean == (name != cluster.expected["killed"])
            assert Path(directory, "log", "INDEX").exists()
            listed = cluster.quire("bookie", "disk", "files", directory).decode()
            kinds |= {word for word in KINDS if word in listed}
            numbers = [line.split()[2] for line in listed.splitlines() if ".seg " in line]
            for number in numbers:
                records |= records_of(directory, number)
    assert kinds == KINDS - (set() if damaged_bookie(cluster) else {"record of damage"})
    assert records >= {
        "master_key", "fence", "explicit_lac", "deleted", "dropped", "merged",
    }  # fmt: skip


KINDS = {"sealed", "open", "prepared", "compacted", "record of damage"}


def damaged_bookie(cluster: GoldenCluster) -> str:
    """Return the bookie with a record of damage, or '' in data of 0.1.0."""
    return str(cluster.expected.get("damaged", {}).get("bookie", ""))


def records_of(directory: str, number: str) -> set[str]:
    """Return the kinds of the state records in a segment."""
    command = ["bookie", "disk", "segment", directory, number, "--json"]
    return set(re.findall(r'"record": "([a-z_]+)"', CliRunner().invoke(cli, command).stdout))


@pytest.mark.parametrize(
    "golden_set", long_after(1, sets_with(lambda one: "torn" in one)[::-1]), ids=named
)
def test_a_torn_end_of_the_log_is_cut_off(golden_set: Path, tmp_path: Path) -> None:
    """A group that was never acknowledged is cut off, and the log goes on after it."""
    cluster = GoldenCluster(golden_set, tmp_path)
    cluster.move()
    directory = str(tmp_path / cluster.expected["torn"])
    (mark,) = cluster.lines("bookie", "disk", "last-mark", directory)
    assert mark["torn_group"] == mark["group"] + 1
    assert mark["problems"] == []
    with cluster:
        cluster.stop(cluster.expected["killed"])
    (after,) = cluster.lines("bookie", "disk", "last-mark", directory)
    assert (after["clean"], after["torn_group"], after["problems"]) == (True, None, [])
    assert after["group"] >= mark["torn_group"]


@pytest.mark.parametrize(
    "golden_set", long_after(1, sets_with(lambda one: "damaged" in one)[::-1]), ids=named
)
async def test_a_damaged_segment_is_repaired(golden_set: Path, tmp_path: Path) -> None:
    """The record of an earlier version says what is damaged; the other bookies have it."""
    cluster = GoldenCluster(golden_set, tmp_path, arguments=("--set", "scrub_interval_s=1"))
    name, ledger_id = (cluster.expected["damaged"][one] for one in ("bookie", "ledger"))
    (directory,) = cluster.directories(name)
    assert damage_records(directory)
    with cluster:
        (ledger,) = [one for one in cluster.expected["ledgers"] if one["id"] == ledger_id]
        assert (await read(cluster, ledger))[0] == entries(ledger)
        marked = cluster.lines("autorecovery", "list")
        assert ledger_id in [one["ledger"] for one in marked]
        assert all(one["replicas"] == [cluster.bookies[name]["id"]] for one in marked)
        with autorecovery(cluster):
            wait_for(lambda: not cluster.lines("autorecovery", "list"), "the ledger is repaired")
            wait_for(lambda: not damage_records(directory), "the segment is rewritten")
        assert (await read(cluster, ledger))[0] == entries(ledger)
        cluster.stop(name)
        cluster.quire("bookie", "disk", "check", directory)


def damage_records(directory: str) -> list[Path]:
    return [*Path(directory, "log").glob("*.damaged")]


@contextmanager
def autorecovery(cluster: GoldenCluster) -> Iterator[None]:
    server = subprocess.Popen(
        [*COMMAND, "autorecovery", "start"],
        env=Quire(cluster.uri).environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        server.terminate()
        server.wait(golden.LIMIT_S)


def test_a_rolled_back_directory_is_noticed(golden_set: Path, tmp_path: Path) -> None:
    """The cluster knows how far the log of the directory had got."""
    cluster = GoldenCluster(golden_set, tmp_path)
    cluster.move()
    (directory,) = cluster.directories("bookie-1")
    listed = cluster.quire("bookie", "disk", "files", directory).decode().splitlines()
    newest = [line.split()[0] for line in listed if ".seg" in line and "prepared" not in line][-1]
    for name in (newest, "log/CLEAN", "log/INDEX"):
        Path(directory, name).unlink()
    done = cluster.run("bookie", "disk", "check", directory)
    assert done.status == 1
    assert "back in time" in done.out.decode() + done.err


async def test_bookies_restart_with_golden_data(golden_set: Path, tmp_path: Path) -> None:
    """Data that this version adds to the former data is sound, too."""
    with GoldenCluster(golden_set, tmp_path) as cluster:
        for name in cluster.bookies:
            (recovered,) = cluster.events(name, "recovered")
            killed = name == cluster.expected["killed"]
            assert "used for" in recovered["report"]
            assert "not used" not in recovered["report"]
            assert ("not stopped cleanly" in recovered["report"]) == killed
        async with quire.connect(cluster.uri) as client:
            writer = await client.create_ledger()
            await writer.append_many([b"%d" % number * 500 for number in range(2_000)])
            await writer.close()
        assert writer.ledger_id > max(cluster.expected["ids"][:-1])
        for name in cluster.bookies:
            cluster.stop(name)
            for directory in cluster.directories(name):
                done = cluster.run("bookie", "disk", "check", directory)
                assert bool(done.status) == (name == damaged_bookie(cluster)), done.out
        for name in cluster.bookies:
            cluster.start(name)
        async with quire.connect(cluster.uri) as client:
            reader = await client.open_ledger(writer.ledger_id)
            found = [bytes(entry.payload) async for entry in reader.read()]
        assert found == [b"%d" % number * 500 for number in range(2_000)]
        await read_closed(cluster)
        check_fences(cluster)


@pytest.mark.long
async def test_bookies_start_without_index_caches(golden_set: Path, tmp_path: Path) -> None:
    """The footers of the segments say the same."""
    cluster = GoldenCluster(golden_set, tmp_path)
    remove_index_caches(cluster)
    with cluster:
        await read_closed(cluster)
        check_fences(cluster)


def remove_index_caches(cluster: GoldenCluster) -> None:
    for name in cluster.bookies:
        for directory in cluster.directories(name):
            Path(directory, "log", "INDEX").unlink()


def check_fences(cluster: GoldenCluster) -> None:
    """Check that every bookie refuses the writer of the fenced ledger."""
    ledger = cluster.ledger("fenced")
    for name in cluster.bookies:
        port, end = cluster.port(name), len(ledger["entries"])
        assert golden.add(port, ledger["id"], end, master_key(b"")) == golden.FENCED


async def read_closed(cluster: GoldenCluster) -> None:
    for ledger in cluster.expected["ledgers"]:
        if ledger["what"].startswith(("closed", "kept", "fenced")):
            wanted = entries(ledger)
            assert await read(cluster, ledger) == (wanted, len(wanted) - 1), ledger["what"]


def master_key(password: bytes) -> bytes:
    return hashlib.sha1(b"ledger" + password).digest()


# -- ledgers --------------------------------------------------------------------------------------


async def test_closed_ledgers_are_read(cluster: GoldenCluster) -> None:
    await read_closed(cluster)


def test_ledger_metadata_is_read(cluster: GoldenCluster) -> None:
    listed = {one["ledger_id"]: one for one in cluster.lines("ledger", "list")}
    assert set(cluster.expected["ids"]) <= set(listed)
    for ledger in cluster.expected["ledgers"]:
        shown = listed[ledger["id"]]
        assert shown["digest"].lower() == ledger.get("digest", "crc32c")
        assert (shown["ensemble"], shown["write_quorum"]) == (3, ledger.get("write_quorum", 3))
        if ledger["what"].startswith("closed"):
            assert shown["state"] == "CLOSED"
            assert shown["last_entry_id"] == len(ledger["entries"]) - 1
            assert shown["length"] == sum(map(len, entries(ledger)))
            assert shown["custom"] == ledger.get("custom", {})
    assert listed[cluster.ledger("closed, metadata of format 2")["id"]]["format_version"] == 2
    assert cluster.lines("autorecovery", "delay") == [{"delay_s": cluster.expected["delay_s"]}]
    paused = [one["kind"] for one in cluster.lines("cluster", "pause")]
    assert paused == cluster.expected.get("paused", [])
    located = {one["id"]: one["location"] for one in cluster.lines("cluster", "locations", "list")}
    assert {name: at for name, at in located.items() if at} == cluster.expected["locations"]


async def test_a_wrong_password_is_refused(cluster: GoldenCluster) -> None:
    for what in ("closed, with a password", "closed, crc32 and a password"):
        ledger = {**cluster.ledger(what), "password": "wrong"}
        with pytest.raises(QuireError, match="password"):
            await read(cluster, ledger)


@pytest.mark.parametrize("what", ["open", "open, with a password", "open, explicit LAC"])
async def test_ledgers_of_a_killed_writer_are_recovered(cluster: GoldenCluster, what: str) -> None:
    ledger = cluster.ledger(what)
    wanted, readable = entries(ledger), ledger["readable"]
    assert await read(cluster, ledger) == (wanted[: readable + 1], readable)
    assert await read(cluster, ledger, recover=True) == (wanted, len(wanted) - 1)
    assert await read(cluster, ledger) == (wanted, len(wanted) - 1)


async def test_a_killed_recovery_is_completed(cluster: GoldenCluster) -> None:
    ledger = cluster.ledger("in recovery")
    (shown,) = cluster.lines("ledger", "show", str(ledger["id"]))
    assert shown["state"] == "IN_RECOVERY"
    cluster.quire("ledger", "recover", str(ledger["id"]))
    assert (await read(cluster, ledger))[0] == entries(ledger)


async def test_fences_are_kept(cluster: GoldenCluster) -> None:
    """A writer that missed that it was fenced is refused by each bookie."""
    check_fences(cluster)
    killed = cluster.port(cluster.expected["killed"])
    half = cluster.ledger("in recovery")  # only this bookie had taken part
    end = len(half["entries"])
    assert golden.add(killed, half["id"], end, master_key(b"")) == golden.FENCED
    # Other adds are refused for their own reason, or not at all.
    async with quire.connect(cluster.uri) as client:
        fresh = await client.create_ledger()
    assert golden.add(killed, fresh.ledger_id, 0, master_key(b"")) == golden.OK
    secret = cluster.ledger("closed, with a password")
    assert golden.add(killed, secret["id"], 99, master_key(b"wrong")) == golden.UNAUTHORIZED


async def test_deleted_ledgers_stay_deleted(cluster: GoldenCluster) -> None:
    """A deleted ledger does not exist, and bookies drop its remaining entries."""
    dropped, stored = (cluster.expected["deleted"][name] for name in ("dropped", "stored"))
    async with quire.connect(cluster.uri) as client:
        for ledger_id in (dropped, stored):
            with pytest.raises(NoSuchLedgerError):
                await client.open_ledger(ledger_id)
    for name in cluster.bookies:
        for directory in cluster.directories(name):
            wait_for(
                lambda directory=directory: (
                    cluster.run("bookie", "disk", "ledger", directory, str(stored)).status
                ),
                f"{name} drops ledger {stored}",
            )
            assert cluster.run("bookie", "disk", "ledger", directory, str(dropped)).status == 1


# -- streams --------------------------------------------------------------------------------------


@asynccontextmanager
async def namespace(cluster: GoldenCluster, path: str = NAMESPACE) -> AsyncIterator[Namespace]:
    async with quire.connect(cluster.uri) as client, await open_namespace(client, path) as opened:
        yield opened


async def records(streams: Namespace, name: str, **options: Any) -> list[list[Any]]:
    reader = await streams.open_reader(name, **options)
    return [
        [str(one.position), one.sequence, one.txid, bytes(one.payload).decode("latin-1")]
        async for one in reader
    ]


@pytest.mark.parametrize("path", [NAMESPACE, INNER, MIRROR])
async def test_records_of_streams_are_read(cluster: GoldenCluster, path: str) -> None:
    wanted = cluster.expected["streams"][path]
    async with namespace(cluster, path) as streams:
        listed = set(await streams.streams())
        assert set(wanted) <= listed
        assert "gone" not in listed
        for name, stream in wanted.items():
            found = await records(streams, name)
            assert found[: len(stream["records"])] == stream["records"], name


def test_settings_of_streams_are_read(cluster: GoldenCluster) -> None:
    def effective(*command: str) -> dict[str, tuple[Any, str]]:
        (shown,) = cluster.lines(*command)
        return {one["name"]: (one["value"], one["from"]) for one in shown["settings"]}

    above = effective("namespace", "show", NAMESPACE)
    for name, value in cluster.expected["settings"].items():
        assert above[name] == (value, "namespace")
    inner = effective("namespace", "show", INNER)
    assert inner["compression"] == ("lz4", "namespace")
    assert inner["entry_bytes"] == (cluster.expected["settings"]["entry_bytes"], "inherited")
    for name in ("orders", "given", "eu/berlin"):
        stream = cluster.expected["streams"][NAMESPACE][name]
        assert stream["settings"]
        found = effective("stream", "show", name, "--namespace", NAMESPACE)
        for key, value in stream["settings"].items():
            assert found[key] == (value, "stream")


async def test_a_subscription_continues(cluster: GoldenCluster) -> None:
    wanted = cluster.expected["streams"][NAMESPACE]["orders"]
    async with namespace(cluster) as streams:
        subscription = streams.subscription("orders", "billing")
        position = await subscription.position()
        assert str(position) == wanted["subscriptions"]["billing"]
    command = ("stream", "read", "orders", "-n", NAMESPACE, "--subscription", "billing")
    rest = [one[3] for one in wanted["records"] if one[1] >= 17]
    assert cluster.quire(*command, "--limit", "5").decode().split("\n")[:-1] == rest[:5]
    assert cluster.quire(*command, "--limit", "5").decode().split("\n")[:-1] == rest[5:10]


async def test_a_stream_of_a_killed_writer_is_continued(cluster: GoldenCluster) -> None:
    """The next writer completes the segment; the producer's records are not repeated."""
    wanted = cluster.expected["streams"][NAMESPACE]["orders"]["records"]
    last = cluster.expected["producer"]["till-7"]
    async with namespace(cluster) as streams:
        async with await streams.open_writer("orders") as writer:
            producer = await writer.producer("till-7")
            assert producer.last_sequence == last
            assert await producer.append(b"order %d" % last, last) is None
            with pytest.raises(StreamConditionError):
                await writer.append(b"not there", expect=wanted[-1][1])
            assert await producer.append(b"order %d" % (last + 1), last + 1)
        found = await records(streams, "orders")
        later = await records(streams, "orders", start=AtSequence(last))
    assert found[:-1] == wanted
    assert found[-1][1:2] == [last + 1]
    assert later == found[-2:]


async def test_an_ended_stream_stays_ended(cluster: GoldenCluster) -> None:
    wanted = cluster.expected["streams"][NAMESPACE]["given"]["records"]
    async with namespace(cluster) as streams:
        assert await records(streams, "given", follow=True) == wanted
        with pytest.raises(QuireError, match="ended"):
            await streams.open_writer("given")


async def test_a_fencing_token_is_kept(cluster: GoldenCluster) -> None:
    async with namespace(cluster) as streams:
        async with await streams.open_writer("eu/berlin") as writer:
            with pytest.raises(StreamConditionError):
                await writer.append(b"without")
            await writer.append(b"more", token="t1")
        assert [one[3] for one in await records(streams, "eu/berlin")][-1] == "more"


# -- objects, datasets, the state machine ---------------------------------------------------------


def test_objects_are_read(cluster: GoldenCluster) -> None:
    for bucket, objects in cluster.expected["objects"].items():
        assert cluster.quire("object", "list", "--bucket", bucket).decode().split("\n")[:-1] == (
            sorted(objects)
        )
        for name, (text, metadata) in objects.items():
            assert cluster.quire("object", "get", name, "--bucket", bucket) == payload(text)
            (shown,) = cluster.lines("object", "show", name, "--bucket", bucket)
            assert shown["metadata"] == metadata
            assert shown["sha256"] == hashlib.sha256(payload(text)).hexdigest()
    assert cluster.run("object", "get", "gone").status == 1


async def test_a_dataset_is_read(cluster: GoldenCluster) -> None:
    values: list[str] = []
    async with quire.connect(cluster.uri) as client:
        dataset = await client.datasets.read("rows")
        assert sorted(dataset.transactions) == cluster.expected["transactions"]
        for part in dataset.ledgers:
            reader = await client.open_ledger(part.ledger_id)
            values += [bytes(entry.payload).decode() async for entry in reader.read()]
    assert sorted(values) == sorted(cluster.expected["dataset"]["rows"])


async def test_a_state_machine_is_restored(cluster: GoldenCluster) -> None:
    """Its snapshot, and the commands after it."""
    wanted = cluster.expected["state"]
    for more in ({}, {"more": 1}):
        async with (
            namespace(cluster) as streams,
            await open_dict(streams, "settings") as state,
        ):
            assert dict(state) == {**wanted, **more}
            await state.set("more", 1)
            await state.leader.snapshot()


# -- ZooKeeper ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_zookeeper(
    golden_set: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GoldenCluster]:
    directory = tmp_path_factory.mktemp("golden-zookeeper")
    with (
        golden.zookeeper(golden_set, directory / "server") as uri,
        GoldenCluster(
            golden_set, directory / "data", name="zookeeper", uri=uri, arguments=COLLECTS
        ) as started,
    ):
        yield started


@pytest.mark.zookeeper
async def test_ledgers_in_zookeeper_are_read(on_zookeeper: GoldenCluster) -> None:
    cluster = on_zookeeper
    listed = {one["ledger_id"] for one in cluster.lines("ledger", "list")}
    assert set(cluster.expected["ids"]) <= listed
    for what in ("closed", "closed, hmac"):
        ledger = cluster.ledger(what)
        assert (await read(cluster, ledger))[0] == entries(ledger), what
    ledger = cluster.ledger("open")
    wanted = entries(ledger)
    assert (await read(cluster, ledger))[0] == wanted[: ledger["readable"] + 1]
    assert (await read(cluster, ledger, recover=True))[0] == wanted
    ledger = cluster.ledger("marked")  # one of its two bookies is lost for good
    assert (await read(cluster, ledger))[0] == entries(ledger)[: ledger["readable"] + 1]
    deleted = cluster.expected["deleted"]["stored"]
    async with quire.connect(cluster.uri) as client:
        with pytest.raises(NoSuchLedgerError):
            await client.open_ledger(deleted)
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        assert writer.ledger_id > max(*cluster.expected["ids"], deleted)
        await writer.append(b"new")
        await writer.close()
        with pytest.raises(LedgerClosedError):
            await writer.append(b"closed")
    assert cluster.quire("ledger", "read", str(writer.ledger_id)) == b"new\n"
    (directory,) = cluster.directories("bookie-zk")
    wait_for(
        lambda: cluster.run("bookie", "disk", "ledger", directory, str(deleted)).status,
        f"the bookie drops ledger {deleted}",
    )


@pytest.mark.zookeeper
def test_marks_in_zookeeper_are_read(on_zookeeper: GoldenCluster) -> None:
    """Ledgers that lack replicas, and how long lost bookies are waited for."""
    listed = on_zookeeper.lines("autorecovery", "list")
    found = {str(one["ledger"]): one["replicas"] for one in listed}
    assert found == {key: [value] for key, value in on_zookeeper.expected["marked"].items()}
    assert on_zookeeper.lines("autorecovery", "delay") == [{"delay_s": 60}]


@pytest.mark.zookeeper
async def test_streams_in_zookeeper_are_read(on_zookeeper: GoldenCluster) -> None:
    cluster = on_zookeeper
    wanted = cluster.expected["streams"][NAMESPACE]["orders"]
    last = cluster.expected["producer"]["till-7"]
    async with namespace(cluster) as streams:
        assert await records(streams, "orders") == wanted["records"]
        position = await streams.subscription("orders", "billing").position()
        assert str(position) == wanted["subscriptions"]["billing"]
        async with await streams.open_writer("orders") as writer:
            producer = await writer.producer("till-7")
            assert producer.last_sequence == last
            assert await producer.append(b"again", last) is None
            assert await producer.append(b"new", last + 1)
        found = await records(streams, "orders")
    assert found[:-1] == wanted["records"]
    assert found[-1][1] == last + 1
    ((text, _),) = cluster.expected["objects"]["default"].values()
    assert cluster.quire("object", "get", "models/one") == payload(text)
