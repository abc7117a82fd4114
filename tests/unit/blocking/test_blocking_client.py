"""The blocking forms of ledgers, objects, datasets and state machines, and of the client."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from quire import blocking
from quire.client.datasets.format import DatasetLedger
from quire.errors import (
    ClientClosedError,
    LedgerClosedError,
    NoSuchNamespaceError,
    StreamClosedError,
    StreamFencedError,
    UsageError,
)
from quire.statemachine import Dictionary
from quire.testing import LocalCluster

WAIT_S = 30.0


def test_an_iteration_that_is_interrupted_raises_the_interruption(
    client: blocking.Client,
) -> None:
    """Ctrl-C while the next entry is waited for: what is waited for ends before it is closed."""
    with client.create_ledger() as writer:
        entries = client.open_ledger(writer.ledger_id).tail(0)
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(entries)
        timer.join()
        assert writer.append(b"goes on") == 0


OPEN_AT_THE_END = """
import os
import sys
from quire import blocking

client = blocking.connect(sys.argv[1])
with client.create_ledger() as writer:
    writer.append_many([b"0", b"1"])
entries = client.open_ledger(writer.ledger_id).read()
next(entries)
child = os.fork()
if not child:
    entries.close()  # it is the parent's
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_program_and_its_child_exit_with_an_unfinished_iteration() -> None:
    with LocalCluster(bookies=3) as cluster:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", OPEN_AT_THE_END, cluster.uri],
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_ledgers_are_written_and_read_with_blocking_calls(client: blocking.Client) -> None:
    with client.create_ledger(custom={"a": b"b"}) as writer:
        assert isinstance(writer, blocking.LedgerWriter)
        assert writer.append(b"0") == 0
        assert writer.append_many([b"1", b"2"]) == 2
        assert writer.submit(b"3") == 3
        writer.room()
        assert writer.flush() == writer.wait(3) == writer.force() == writer.last_add_confirmed == 3
        assert (writer.length, writer.custom, writer.closed) == (4, {"a": b"b"}, False)
    assert writer.closed
    with client.open_ledger(writer.ledger_id) as reader:
        assert [entry.payload for entry in reader.read()] == [b"0", b"1", b"2", b"3"]
        assert [entry.entry_id for entry in reader.tail(2)] == [2, 3]
        assert [entry.payload for entry in reader.read_unconfirmed(1, 2)] == [b"1", b"2"]
        assert (reader.read_last().payload, reader.read_entry(1).ledger_length) == (b"3", 2)
        assert reader.wait_confirmed(3) == reader.refresh() == 3
    with pytest.raises(UsageError, match="closed"):
        list(reader.read())
    assert client.list_ledgers() == [writer.ledger_id]
    assert client.ledger_metadata(writer.ledger_id).closed
    assert len(client.bookies().writable) == 3
    assert client.suspects() == []
    assert "quire_client_adds_total 4" in client.metrics()
    client.delete_ledger(writer.ledger_id)


def test_explicit_entry_ids_are_accepted(client: blocking.Client) -> None:
    with client.create_ledger(caller_ids=True) as writer:
        assert isinstance(writer, blocking.CallerIdWriter)
        writer.submit_at(1, b"one")
        assert writer.held_entry_ids == [1]
        assert writer.append_at(0, b"zero") == 0
        assert writer.flush() == 1


def test_an_error_in_the_block_abandons_the_ledger(client: blocking.Client) -> None:
    with pytest.raises(ZeroDivisionError), client.create_ledger() as writer:
        raise ZeroDivisionError
    with pytest.raises(LedgerClosedError):
        writer.append(b"late")
    assert client.open_ledger(writer.ledger_id, recover=True).ledger_closed


def test_an_abandoned_iteration_is_closed(client: blocking.Client) -> None:
    with client.create_ledger() as writer:
        writer.append_many([b"x"] * 10)
        writer.append(b"says that the ten before it are acknowledged")
        reader = client.open_ledger(writer.ledger_id)
        tail = reader.tail(0)
        assert next(tail).entry_id == 0
        tail.close()  # type: ignore[attr-defined]
        with pytest.raises(StopIteration):
            next(tail)
    assert not reader.aio._tails


def test_objects_are_put_and_read_with_blocking_calls(client: blocking.Client) -> None:
    objects = client.objects("models")
    for name, source in {
        "buffer": b"bytes",
        "file": io.BytesIO(b"bytes"),
        "pieces": iter([b"by", bytearray(b"tes")]),
    }.items():
        assert objects.put(name, source).size_bytes == 5
        with objects.get(name) as found:
            assert found.read_all() == b"".join(found.read()) == b"bytes"
            assert found.info == objects.info(name)
    assert [info.name for info in objects.list()] == ["buffer", "file", "pieces"]
    assert objects.delete("file")
    assert list(objects.orphans(0)) == objects.sweep(0) == []
    assert objects.bucket == "models"


def test_datasets_are_published_and_read_with_blocking_calls(client: blocking.Client) -> None:
    with client.create_ledger() as writer:
        writer.append(b"row")
    with client.datasets as datasets:
        datasets.publish("d", [DatasetLedger(writer.ledger_id, 0, 0, 1, 3)], txn="t")
        assert datasets.read("d").rows == 1
        assert datasets.find_transaction("d", "t") == 1
        assert datasets.list_datasets() == ["d"]


def test_state_machines_are_led_and_followed_with_blocking_calls(client: blocking.Client) -> None:
    with pytest.raises(NoSuchNamespaceError):
        client.state_machine("/state", "d", Dictionary())
    set_a = json.dumps(["set", "a", 1]).encode()
    followed = Dictionary()
    with client.state_machine("/state", "d", Dictionary(), create=True) as leader:
        assert leader.execute(set_a)
        with client.state_machine("/state", "d", followed, follow=True) as follower:
            follower.wait_applied(leader.applied)
            assert follower.failure is None
        leader.snapshot()
        leader.confirm()
    assert followed.items == {"a": 1}
    with client.durable_dict("/state", "d") as old, client.durable_dict("/state", "d") as new:
        new.set("b", 2)
        assert (dict(new), len(new), new["b"], new.leader.applied) == ({"a": 1, "b": 2}, 2, 2, 2)
        assert new.compare_and_set("b", 2, 3)
        assert new.delete("a")
        with pytest.raises(StreamFencedError):
            old.set("c", 3)
        old.leader.aio._writer.abandon()
        old._left, old._pid = True, -1  # Nothing of it is left to close.


def test_the_blocking_client_works_inside_a_running_event_loop(client: blocking.Client) -> None:
    async def notebook() -> int:
        with client.create_ledger() as writer:
            return writer.append(b"one")

    assert asyncio.run(notebook()) == 0


def test_threads_share_a_client(client: blocking.Client) -> None:
    with client.create_ledger() as writer:
        found: list[int] = []

        def append() -> None:
            found.extend(writer.append(b"x") for _ in range(20))

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert sorted(found) == list(range(80))


def test_a_closed_client_raises_client_closed(client: blocking.Client) -> None:
    datasets = client.datasets
    client.close()
    client.close()
    for use in (
        client.create_ledger,
        client.bookies,
        lambda: client.namespace("/a"),
        client.objects,
    ):
        with pytest.raises(ClientClosedError):
            use()
    assert datasets.aio is not None


def test_handles_work_in_a_forked_child_or_name_their_process(
    client: blocking.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.create_ledger() as writer:
        writer.append(b"one")
    reader = client.open_ledger(writer.ledger_id)
    team = client.namespace("/team", create=True)
    objects = client.objects()
    objects.put("o", b"bytes")
    opened = objects.get("o")
    mine = client.aio
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert client.aio is not mine
    assert reader.aio is not reader._again
    assert [entry.payload for entry in reader.read()] == [b"one"]
    assert team.aio.client is client.aio
    assert objects.info("o").size_bytes == 5
    for what, use in {
        f"the writer of ledger {writer.ledger_id}": writer.flush,
        "the reader of object o": opened.read_all,
    }.items():
        with pytest.raises(UsageError, match=f"{what} belongs to process"):
            use()
    team.close()
    client.close()
    monkeypatch.undo()
    client._pid = os.getpid()
    client._opened, client._left = mine, False


class Leaving(Dictionary):
    """A machine of a program that ends itself in `apply`."""

    def apply(self, command: bytes) -> None:
        if command == b"leave":
            sys.exit(3)


def test_a_machine_that_ends_the_process_stops_no_other_call(client: blocking.Client) -> None:
    """The exception ended the loop of all blocking calls, which then waited for ever."""
    leader = client.state_machine("/leaving", "m", Leaving(), create=True)
    calls = ThreadPoolExecutor()  # a call that hangs would keep the test from its end
    try:
        assert isinstance(calls.submit(leader.execute, b"leave").exception(WAIT_S), SystemExit)
        assert calls.submit(client.create_ledger).result(WAIT_S).append(b"one") == 0
        closed = calls.submit(leader.execute, b"stay").exception(WAIT_S)
        assert isinstance(closed, StreamClosedError)
        assert "Open it again" in str(closed)
        calls.submit(leader.close).exception(WAIT_S)
    finally:
        calls.shutdown(wait=False)


def test_a_callback_that_ends_the_process_stops_no_other_call(client: blocking.Client) -> None:
    objects = client.objects()
    objects.put("o", b"one")

    def leave(_: object) -> bool:
        raise KeyboardInterrupt

    with ThreadPoolExecutor() as calls:
        failed = calls.submit(objects.put, "o", b"two", replace=leave).exception(WAIT_S)
        assert isinstance(failed, KeyboardInterrupt)
        assert calls.submit(objects.info, "o").result(WAIT_S).size_bytes == 3
