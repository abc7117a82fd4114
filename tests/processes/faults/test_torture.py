"""The torture test: its judge notices every broken promise, and a short run is passed."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import quire
from quire.testing import LocalCluster
from quire.testing._process import ServerProcess
from tests.support.torture.__main__ import torture
from tests.support.torture.clients import create_streams
from tests.support.torture.journal import (
    SUFFIX,
    Journal,
    LedgerPromise,
    ProducerPromise,
    Promises,
    check_ledger,
    check_stream,
    entry_payload,
    longest_pause,
    record_of,
    record_payload,
)
from tests.support.torture.judge import judge
from tests.support.torture.nemesis import Nemesis
from tests.support.torture.place import CLIENTS, ZOOKEEPER, Place, Server, ZooKeeperServer
from tests.support.waiting import wait_for

BOOKIES = 3
MINUTES = 0.2


def payloads(count: int) -> list[bytes]:
    return [entry_payload(7, entry) for entry in range(count)]


def records(*numbers: int, producer: str = "p") -> list[bytes]:
    return [record_payload(producer, number) for number in numbers]


def test_a_correct_ledger_passes_the_check() -> None:
    assert not list(check_ledger(7, LedgerPromise(4, {9}), 9, payloads(10)))
    assert not list(check_ledger(7, LedgerPromise(), -1, []))


@pytest.mark.parametrize(
    ("promise", "end", "found", "what"),
    [
        (LedgerPromise(9), 8, payloads(9), "entry 9 was acknowledged"),
        (LedgerPromise(4, {9, 8}), 9, payloads(10), "[8] was reported as well"),
        (LedgerPromise(4), 9, payloads(9), "but 9 entries were read"),
        (LedgerPromise(4), 1, [entry_payload(7, 0), entry_payload(8, 1)], "not what was appended"),
        (LedgerPromise(-1), 1, [*reversed(payloads(2))], "not what was appended"),
    ],
)
def test_a_ledger_that_lost_an_entry_fails_the_check(
    promise: LedgerPromise, end: int, found: list[bytes], what: str
) -> None:
    assert what in "; ".join(check_ledger(7, promise, end, found))


def test_a_correct_stream_passes_the_check() -> None:
    promises = {"p": ProducerPromise(3, truncated=2), "q": ProducerPromise(1, truncated=2)}
    assert not list(check_stream("s", promises, records(1, 2, 3, 4)))


@pytest.mark.parametrize(
    ("promise", "found", "what"),
    [
        (ProducerPromise(3), records(0, 1, 3), "missing, doubled or out of order"),
        (ProducerPromise(3), records(0, 1, 1, 2, 3), "missing, doubled or out of order"),
        (ProducerPromise(3), records(1, 0, 2, 3), "missing, doubled or out of order"),
        (ProducerPromise(3), records(0, 1, 2), "record 3 of p was acknowledged"),
        (ProducerPromise(3, truncated=1), records(2, 3), "begins at 2"),
        (ProducerPromise(3, truncated=3), [], "begins at 4"),
        (ProducerPromise(3), [b"p:0;", b"p:1;"], "not what was appended"),
    ],
)
def test_a_stream_that_lost_a_record_fails_the_check(
    promise: ProducerPromise, found: list[bytes], what: str
) -> None:
    assert what in "; ".join(check_stream("s", {"p": promise}, found))


def test_records_name_their_producer() -> None:
    assert record_of(record_payload("writer-1", 64)) == ("writer-1", 64)
    assert record_of(record_payload("writer-1", 64)[:-1]) is None
    assert record_of(b"nothing") is None


def test_promises_are_read_while_they_are_written(tmp_path: Path) -> None:
    one, other, promises = Journal(tmp_path / f"a{SUFFIX}"), tmp_path / f"b{SUFFIX}", Promises()
    one.add("created", 7)
    one.add("acked", 7, 9)
    promises.update(tmp_path)
    assert promises.ledgers[7].acked == 9
    other.write_text("1.5 closed 7 9\n2.5 deleting 7\n3.0 wrong this and that\n4.0 acked 7 1")
    promises.update(tmp_path)
    assert (promises.ledgers[7].ends, promises.live()) == ({9}, {})
    assert promises.wrong == ["b: this and that"]
    with other.open("a") as file:
        file.write("1\n5.0 sent s p 4\n6.0 truncating s p 3\n7.0 counted reads 2\n")
    promises.update(tmp_path)
    assert promises.ledgers[7].acked == 11
    assert promises.producers("s")["p"] == ProducerPromise(4, 3)
    assert promises.figures["reads"] == 2
    assert longest_pause([1.0, 7.0, 2.0]) == 5.0
    one.close()


@pytest.mark.parametrize(("status", "trouble"), [(0, False), (3, True)])
def test_a_program_that_exits_is_recorded_and_restarted(
    tmp_path: Path, status: int, trouble: bool
) -> None:
    """The end of a program with status 0 once raised IndexError, or logged an older text again."""
    command = [sys.executable, "-c", f"raise SystemExit({status})"]
    process = ServerProcess("p", command, tmp_path / "p.log")
    program = Server("reader-1", CLIENTS, process)
    zookeeper = ZooKeeperServer("zookeeper", ZOOKEEPER, process, busy=True)
    place = Place(tmp_path, "", None, zookeeper, [], [], [program])
    nemesis = Nemesis(place, random.Random(1))
    process.launch()
    first = process.pid
    try:
        wait_for(lambda: not process.alive)
        nemesis._check()
        assert process.pid != first
    finally:
        process.kill()
        nemesis._log.close()
    assert f"reader-1 ended with status {status}" in (tmp_path / "faults.log").read_text()
    assert nemesis.trouble == [f"reader-1 ended with status {status}: nothing"] * trouble


Change = Callable[[Promises, int], None]


def _more_acked(promises: Promises, ledger: int) -> None:
    promises.ledgers[ledger].acked += 100


def _other_end(promises: Promises, ledger: int) -> None:
    promises.ledgers[ledger].ends.add(3)


def _other_ledger(promises: Promises, ledger: int) -> None:
    promises.ledgers[ledger + 100] = LedgerPromise(1)


def _more_sent(promises: Promises, ledger: int) -> None:
    promises.producers("one")["p"].acked += 1


@pytest.mark.slow
async def test_the_judge_compares_a_cluster_with_the_promises() -> None:
    async with LocalCluster(bookies=BOOKIES) as cluster:
        async with quire.connect(cluster.uri) as client:
            await create_streams(client)
            writer = await client.create_ledger()
            ledger = writer.ledger_id
            await writer.append_many([entry_payload(ledger, entry) for entry in range(20)])
            writer.abandon()
            async with (
                client.namespace("/torture") as streams,
                streams.open_writer("one") as stream,
            ):
                producer = await stream.producer("p")
                await producer.append_many(records(0, 1, 2), 0)

        def promised() -> Promises:
            promises = Promises(ledgers={ledger: LedgerPromise(19)})
            promises.producers("one")["p"] = ProducerPromise(2)
            return promises

        verdict = await judge(cluster.uri, BOOKIES, promised())
        assert not verdict.wrong
        assert (verdict.ledgers, verdict.entries, verdict.records) == (1, 20, 3)
        changes: list[tuple[Change, str]] = [
            (_more_acked, "entry 119 was acknowledged"),
            (_other_end, "[3] was reported as well"),
            (_other_ledger, "is gone, but nobody deleted it"),
            (_more_sent, "record 3 of p was acknowledged"),
        ]
        for change, what in changes:
            promises = promised()
            change(promises, ledger)
            verdict = await judge(cluster.uri, BOOKIES, promises)
            assert what in "; ".join(verdict.wrong)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.zookeeper
def test_a_short_torture_run_keeps_every_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert torture(tmp_path / "torture", MINUTES, seed=5, bookies=5), capsys.readouterr().out
    said = capsys.readouterr().out
    assert "torture: passed" in said
    assert "WRONG" not in said
