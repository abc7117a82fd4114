"""The contract of the commands that work on objects, with real processes and the blocking API."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import blocking
from quire.errors import NoSuchObjectError, ObjectExistsError
from quire.testing.cluster import LocalCluster
from tests.support.processes.cli import TIMEOUT_S, Quire
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

DATA = random.Random(1).randbytes(5_000_000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as local:
        yield local


@pytest.fixture
def quire(cluster: LocalCluster, tmp_path: Path) -> Quire:
    return Quire(cluster.uri, tmp_path)


def show(quire: Quire, name: str, *more: str) -> dict[str, object]:
    shown = json.loads(quire("object", "show", name, "--json", *more).ok())
    assert isinstance(shown, dict)
    return shown


def ledgers(quire: Quire) -> list[str]:
    return quire("ledger", "list").ok().decode().split()


def test_a_file_round_trips_through_an_object(quire: Quire, tmp_path: Path) -> None:
    (tmp_path / "state.bin").write_bytes(DATA)
    done = quire(
        "object", "put", "state.bin", "jobs/42/c", "--meta", "step=7", "--meta", "a=b=c", "--json"
    )
    described = json.loads(done.ok())
    assert described == show(quire, "jobs/42/c")
    assert described["sha256"] == hashlib.sha256(DATA).hexdigest()
    assert (described["bytes"], described["chunks"]) == (len(DATA), 20)
    assert described["metadata"] == {"step": "7", "a": "b=c"}
    assert quire("object", "get", "jobs/42/c").ok() == DATA
    assert quire("object", "get", "jobs/42/c", "-o", "back.bin").ok() == b""
    assert (tmp_path / "back.bin").read_bytes() == DATA
    assert sorted(os.listdir(tmp_path)) == ["back.bin", "state.bin"]
    text = quire("object", "show", "jobs/42/c").ok().decode()
    assert f"SHA-256   {described['sha256']}\n" in text
    assert "metadata  a=b=c\n" in text


def test_an_object_is_read_from_standard_input(quire: Quire) -> None:
    done = quire("object", "put", "-", "piped", "--chunk-bytes", "100000", stdin=DATA)
    assert done.ok() == b""
    assert done.err.startswith(f"object piped put: {len(DATA):,} bytes in ledger ")
    assert show(quire, "piped")["chunks"] == 50
    assert quire("object", "get", "piped").ok() == DATA
    assert quire("object", "put", "-", "nothing").ok() == b""
    assert quire("object", "get", "nothing").ok() == b""


@pytest.mark.parametrize(
    ("wanted", "first", "end"),
    [("0-0", 0, 1), ("999-1000", 999, 1_001), ("2400-", 2_400, 2_500), ("17-99999", 17, 2_500)],
)
def test_a_range_of_an_object_is_printed(quire: Quire, wanted: str, first: int, end: int) -> None:
    data = DATA[:2_500]
    quire("object", "put", "-", "ranged", "--replace", "--chunk-bytes", "1000", stdin=data).ok()
    assert quire("object", "get", "ranged", "--range", wanted).ok() == data[first:end]
    quire("object", "get", "ranged", "--range", "2501-").fails(2, "2,500 bytes")


def test_objects_are_listed_replaced_and_deleted(quire: Quire, tmp_path: Path) -> None:
    def names(*arguments: str) -> list[str]:
        return quire("object", "list", "--bucket", "own", *arguments).ok().decode().splitlines()

    def put(name: str, data: bytes, *more: str) -> object:
        quire("object", "put", "-", name, "--bucket", "own", *more, stdin=data).ok()
        return show(quire, name, "--bucket", "own")["ledger_id"]

    put("a/2", b"x")
    put("a/1", b"y")
    first = put("ä", b"one")
    (tmp_path / "file").write_bytes(b"z")
    quire("object", "put", "file", "--bucket", "own").ok()
    assert names() == ["a/1", "a/2", "file", "ä"]
    assert names("a/") == ["a/1", "a/2"]
    assert names("--after", "a/2") == ["file", "ä"]
    lines = quire("object", "list", "ä", "--bucket", "own", "--json").ok().splitlines()
    assert [json.loads(line) for line in lines] == [show(quire, "ä", "--bucket", "own")]
    quire("object", "put", "file", "ä", "--bucket", "own").fails(1, "'ä' already exists")
    second = put("ä", b"two", "--replace")
    assert quire("object", "get", "ä", "--bucket", "own").ok() == b"two"
    assert str(first) not in ledgers(quire)
    assert str(second) in ledgers(quire)
    planned = quire("object", "delete", "ä", "--bucket", "own", "--dry-run")
    assert planned.ok() == b""
    assert planned.err == "object ä (3 bytes) would be deleted\n"
    assert str(second) in ledgers(quire)
    assert quire("object", "delete", "ä", "--bucket", "own").ok() == b""
    assert str(second) not in ledgers(quire)
    done = quire("object", "delete", "ä", "--bucket", "own")
    assert (done.ok(), done.err) == (b"", "object ä does not exist\n")
    for verb in ("get", "show"):
        quire("object", verb, "ä", "--bucket", "own").fails(1, "'ä' does not exist", "'own'")
    assert names() == ["a/1", "a/2", "file"]


def test_a_failed_get_does_not_change_the_file(quire: Quire, tmp_path: Path) -> None:
    quire("object", "put", "-", "damaged", stdin=b"some").ok()
    quire("ledger", "delete", str(show(quire, "damaged")["ledger_id"]), "--force").ok()
    (tmp_path / "there").write_bytes(b"before")
    quire("object", "get", "damaged", "-o", "there").fails(1, "damaged")
    quire("object", "put", "-", "good", stdin=b"good").ok()
    quire("object", "get", "good", "-o", "there", "--range", "5-").fails(2, "4 bytes")
    assert os.listdir(tmp_path) == ["there"]
    assert (tmp_path / "there").read_bytes() == b"before"
    (tmp_path / "link").symlink_to("there")
    quire("object", "get", "good", "-o", "link").ok()
    assert (tmp_path / "there").read_bytes() == b"good"
    assert (tmp_path / "link").is_symlink()
    quire("object", "get", "good", "-o", "/dev/null").ok()
    assert Path("/dev/null").is_char_device()
    quire("object", "get", "good", "-o", "none/there").fails(2, "does not exist")


def test_unreadable_files_are_reported(quire: Quire, tmp_path: Path) -> None:
    before = ledgers(quire)
    quire("object", "put", "missing").fails(1, "missing: No such file or directory")
    quire("object", "put", str(tmp_path), "name").fails(1, "Is a directory")
    assert ledgers(quire) == before


def test_ctrl_c_deletes_the_ledger_of_an_unfinished_put(quire: Quire) -> None:
    before = ledgers(quire)
    with quire.start("object", "put", "-", "interrupted") as put:
        put.type(DATA)
        wait_for(lambda: ledgers(quire) != before, "the beginning of the put")
        done = put.end(signal.SIGINT)
    assert (done.status, done.err) == (130, "interrupted\n")
    assert ledgers(quire) == before
    assert b"interrupted" not in quire("object", "list").ok()


def test_the_ledger_of_a_killed_put_is_swept(quire: Quire, cluster: LocalCluster) -> None:
    before = ledgers(quire)
    with quire.start("object", "put", "-", "killed") as put:
        put.type(DATA)
        wait_for(lambda: ledgers(quire) != before, "the beginning of the put")
        put.process.kill()
        put.process.wait(TIMEOUT_S)
    assert b"killed" not in quire("object", "list").ok()
    with blocking.connect(cluster.uri) as client:
        objects = client.objects()
        assert [orphan.name for orphan in objects.orphans(0)] == ["killed"]
        assert list(objects.orphans(3_600)) == []
        (swept,) = objects.sweep(0)
    assert str(swept) not in before
    assert ledgers(quire) == before


def test_objects_are_accessible_through_the_blocking_client(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with blocking.connect(cluster.uri) as client:
        objects = client.objects("blocking")
        one = objects.put("from/bytes", DATA, metadata={"k": "v"})
        with open(tmp_path / "file", "rb") as file:
            file.seek(1_000)
            objects.put("from/file", file, chunk_bytes=123_456)
        objects.put("from/buffer", io.BytesIO(DATA))
        objects.put("from/parts", (DATA[at : at + 70_000] for at in range(0, len(DATA), 70_000)))
        with pytest.raises(ObjectExistsError):
            objects.put("from/parts", b"")
        assert objects.info("from/bytes") == one
        names = ["from/buffer", "from/bytes", "from/file", "from/parts"]
        assert [info.name for info in objects.list("from/")] == names
        for name in names:
            with objects.get(name) as found:
                whole = DATA[1_000:] if name == "from/file" else DATA
                assert b"".join(found.read()) == whole
                assert found.read_all(2_000_000, 10) == whole[2_000_000:2_000_010]
                assert next(found.read()) == whole[: found.info.chunk_bytes]  # and no more
        assert objects.delete("from/bytes")
        with pytest.raises(NoSuchObjectError):
            objects.get("from/bytes")


@pytest.mark.long
def test_an_object_survives_a_bookie(cluster: LocalCluster) -> None:
    """The object is written and read while one of three bookies is down."""
    with blocking.connect(cluster.uri) as client:
        objects = client.objects()
        bookie = cluster.bookies[0]

        def parts() -> Iterator[bytes]:
            yield DATA[:3_000_000]
            bookie.kill()
            yield DATA[3_000_000:]

        try:
            objects.put("survivor", parts(), chunk_bytes=50_000)
            with objects.get("survivor") as found:
                assert found.read_all() == DATA
        finally:
            if not bookie.alive:
                bookie.start()


@pytest.mark.long
@pytest.mark.zookeeper
def test_objects_work_with_zookeeper() -> None:
    one = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    with LocalCluster(bookies=1, zookeeper=True) as local, blocking.connect(local.uri) as client:
        objects = client.objects("Überall")
        first = objects.put("a/b", b"one", **one)
        objects.put("a", b"two", **one)
        objects.put("a/%2F/ü €", b"", metadata={"ü": "€"}, **one)
        with pytest.raises(ObjectExistsError):
            objects.put("a/b", b"three", **one)
        with objects.get("a/b") as old:
            objects.put("a/b", b"three", replace=True, **one)
            assert old.read_all() == b"one"
        assert [info.name for info in objects.list()] == ["a", "a/%2F/ü €", "a/b"]
        assert objects.info("a/%2F/ü €").metadata == {"ü": "€"}
        assert objects.delete("a/b")
        assert not objects.delete("a/b")
        assert [info.name for info in objects.list("a/")] == ["a/%2F/ü €"]
        with objects.get("a") as found:
            assert found.read_all() == b"two"
        assert first.ledger_id not in client.list_ledgers()
        custom = {"quire.object.bucket": "Überall".encode(), "quire.object.name": b"a"}
        lost = client.create_ledger(custom=custom, **one)
        assert objects.sweep(0) == [lost.ledger_id]
        assert len(client.list_ledgers()) == 2
