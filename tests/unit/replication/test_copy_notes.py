"""Notes of continuous copies: who writes, keeps and removes them, and what they tell people."""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
import signal
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from quire._runtime.clock import SystemClock
from quire.cli.main import cli
from quire.client import Client
from quire.errors import MetadataDeniedError, StreamFencedError
from quire.http.views.cluster_view import ClusterView
from quire.http.views.problems.cluster import problems
from quire.http.views.stream_statistics import copies_of_topic
from quire.metadata import MetadataStore, open_metadata
from quire.replication.explain.copies import of_copies
from quire.replication.marks.copy_notes import (
    BEHIND_S,
    SILENT_S,
    STREAMS_NAMED_MAX,
    CopyNote,
    CopyReporter,
    StreamLag,
    copy_notes,
    forget_copy,
    shown_uri,
)
from quire.replication.marks.job_announcements import running_jobs
from quire.spark.jobs import replicate_note
from quire.spark.jobs.replicate_note import noted, report_of
from quire.spark.jobs.tasks import ClusterOptions
from quire.streams.namespace.namespace import open_namespace
from tests.support.http.problems import WELL, bookie
from tests.support.streams import Bench, run
from tests.support.waiting import until

# The package has a function of the same name.
replicate = importlib.import_module("quire.spark.jobs.replicate")

NOTE = CopyNote(
    "zk://here:2181/ledgers", "here", "/shop", "zk://there:2181/ledgers", "there", "/copies",
    "orders*", "host.7", 1_000, said_ms=1_000,
)  # fmt: skip
STALE_MS = int(SILENT_S * 1000) + 1


async def made(directory: Path, name: str) -> MetadataStore:
    store = await open_metadata(f"sqlite:///{directory}/{name}.db", create=True)
    await store.initialise()
    return store


# -- writing ----------------------------------------------------------------------------------


async def test_a_note_is_in_both_clusters_until_the_copy_ends_as_demanded(tmp_path: Path) -> None:
    here, there = await made(tmp_path, "here"), await made(tmp_path, "there")
    reporter = CopyReporter([here, there], NOTE)
    await reporter.say(2_000)
    await reporter.say(3_000, records=5, seconds=1.5, count=2)
    told = replace(NOTE, said_ms=3_000, records=5, seconds=1.5, count=2)
    assert await copy_notes(here) == await copy_notes(there) == [told]
    assert await running_jobs(here) == [], "earlier versions read only these announcements"
    await reporter.leave()
    assert await copy_notes(here) == await copy_notes(there) == []
    await here.close()
    await there.close()


async def test_a_source_that_may_only_be_read_gets_no_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await made(tmp_path, "here"), await made(tmp_path, "there")

    async def denied(*_: object, **__: object) -> int:
        raise MetadataDeniedError("this account may only read")

    monkeypatch.setattr(here, "write_value", denied)
    reporter = CopyReporter([here, there], NOTE)
    await reporter.say(2_000)
    assert await copy_notes(here) == []
    assert [one.said_ms for one in await copy_notes(there)] == [2_000]
    await here.close()
    await there.close()


async def test_a_process_that_was_replaced_does_not_touch_the_note_of_the_other(
    tmp_path: Path,
) -> None:
    """It is fenced by the other, and its last report is that its copy has ended."""
    store = await made(tmp_path, "there")
    former = CopyReporter([store], NOTE)
    await former.say(2_000)
    later = CopyReporter([store], replace(NOTE, by="other.8", since_ms=500))  # its clock is behind
    await later.say(600)
    await former.say(3_000, error="it was taken over")
    await former.leave()
    (found,) = await copy_notes(store)
    assert (found.by, found.said_ms, found.error) == ("other.8", 600, "")
    await store.close()


async def test_a_forgotten_note_of_a_running_copy_appears_again(tmp_path: Path) -> None:
    store = await made(tmp_path, "there")
    reporter = CopyReporter([store], NOTE)
    await reporter.say(2_000)
    assert await forget_copy(store, NOTE.name)
    assert not await forget_copy(store, NOTE.name)
    assert await copy_notes(store) == []
    await reporter.say(3_000)
    assert [one.said_ms for one in await copy_notes(store)] == [3_000]
    await store.close()


DAMAGED = (
    b"", b"[]", b"{}", b"1", b'{"source": 1e400}', b"[" * 100_000,
    json.dumps({"source": "x"}).encode(),
)  # fmt: skip


async def test_a_damaged_note_or_one_of_a_later_version_hides_no_other(tmp_path: Path) -> None:
    store = await made(tmp_path, "there")
    await CopyReporter([store], NOTE).say(2_000)
    value = json.loads((await store.read_value(("jobs", "copies", NOTE.name))).value)
    for at, damaged in enumerate(DAMAGED):
        await store.write_value(("jobs", "copies", f"damaged{at}"), damaged, None)
    for at, change in enumerate(
        ({"said_ms": "x"}, {"records": -1}, {"seconds": True}, {"lags": [1]}, {"settings": []})
    ):
        text = json.dumps({**value, **change}).encode()
        await store.write_value(("jobs", "copies", f"wrong{at}"), text, None)
    later = json.dumps({**value, "by": "later.1", "of_a_later_version": [1]}).encode()
    await store.write_value(("jobs", "copies", "later"), later, None)
    assert sorted(one.by for one in await copy_notes(store)) == ["host.7", "later.1"]
    await store.close()


# -- a run ------------------------------------------------------------------------------------


async def test_a_run_reports_its_lag_and_says_why_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicate_note, "SAY_INTERVAL_S", 0.01)
    lags = [StreamLag("orders", 7, 2.5), StreamLag("orders-eu", 0, 0.0)]

    async def measure() -> Sequence[StreamLag]:
        return lags

    here, there = await made(tmp_path, "here"), await made(tmp_path, "there")
    async with Client(here) as source, Client(there) as target:

        async def told() -> CopyNote:
            (found,) = await copy_notes(here)
            return found

        async def reported() -> bool:
            return (await told()).records == 7

        async with noted(source, target, NOTE, measure):
            assert (await told()).error == ""
            await until(reported)
            found = await told()
            assert (found.count, found.failed, found.seconds) == (2, 0, 2.5)
            assert found.lags == (lags[0],)
        assert await copy_notes(here) == [], "it ended as demanded"
        with pytest.raises(ZeroDivisionError):
            async with noted(source, target, NOTE, measure):
                raise ZeroDivisionError("Spark is gone")
        assert (await told()).error == "Spark is gone"
        with pytest.raises(asyncio.CancelledError):
            async with noted(source, target, NOTE, measure):
                raise asyncio.CancelledError
        assert await copy_notes(here) == [], "somebody interrupted it"


async def test_a_run_that_is_interrupted_while_it_writes_its_note_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await made(tmp_path, "here"), await made(tmp_path, "there")
    write, written = there.write_value, asyncio.Event()

    async def slow(*given: Any, **more: Any) -> int:
        version = await write(*given, **more)
        written.set()
        await asyncio.Event().wait()
        return version

    async with Client(here) as source, Client(there) as target:

        async def never() -> Sequence[StreamLag]:
            return []

        async def run() -> None:
            async with noted(source, target, NOTE, never):
                pass

        monkeypatch.setattr(there, "write_value", slow)
        running = asyncio.create_task(run())
        await written.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await copy_notes(here) == await copy_notes(there) == []


def test_ctrl_c_in_a_program_removes_the_note(tmp_path: Path) -> None:
    """The program closed both clients while the job was about to remove it."""
    uris = [f"sqlite:///{tmp_path}/{name}.db" for name in ("here", "there")]
    for name in ("here", "there"):
        asyncio.run(made_namespace(tmp_path, name))

    async def notes(uri: str) -> list[CopyNote]:
        store = await open_metadata(uri)
        found = await copy_notes(store)
        await store.close()
        return found

    async def interrupt(main: int) -> None:
        async def noted_in_both() -> bool:
            return all([await notes(uri) for uri in uris])

        await until(noted_in_both)
        signal.pthread_kill(main, signal.SIGINT)

    ends = [ClusterOptions(uri) for uri in uris]
    nothing: Any = None
    other = threading.Thread(target=lambda main: asyncio.run(interrupt(main)),
                             args=(threading.get_ident(),))  # fmt: skip
    other.start()
    with pytest.raises(KeyboardInterrupt):
        replicate.replicate(nothing, *ends, "/shop", continuous=True)
    other.join()
    assert [asyncio.run(notes(uri)) for uri in uris] == [[], []]


async def made_namespace(directory: Path, name: str) -> None:
    store = await made(directory, name)
    async with Client(store) as client, await open_namespace(client, "/shop", create=True):
        pass


def test_the_worst_streams_are_named_and_unknown_lags_stay_unknown() -> None:
    found = report_of([
        StreamLag("fine", 0, 0.0), StreamLag("late", 5, 9.0), StreamLag("later", 3, 20.0),
        StreamLag("broken", None, None, "it was taken over"),
    ])  # fmt: skip
    assert [one.stream for one in found["lags"]] == ["broken", "later", "late"]
    assert (found["records"], found["seconds"], found["failed"]) == (8, 20.0, 1)
    unknown = report_of([StreamLag("a", None, None), StreamLag("b", 1, 1.0)])
    assert (unknown["records"], unknown["seconds"]) == (None, None)
    many = report_of([StreamLag(f"{at}", 1, 1.0) for at in range(2 * STREAMS_NAMED_MAX)])
    assert len(many["lags"]) == STREAMS_NAMED_MAX


# -- what people learn ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("note", "after_ms", "state"),
    [
        (NOTE, STALE_MS - 1, "running"),
        (NOTE, STALE_MS, "stopped"),
        (replace(NOTE, error="why"), 0, "stopped"),
        (replace(NOTE, failed=1), 0, "failed"),
        (replace(NOTE, records=1, seconds=BEHIND_S + 1), 0, "behind"),
        (replace(NOTE, records=1, seconds=BEHIND_S), 0, "running"),
        (replace(NOTE, records=1, seconds=BEHIND_S), 1_000, "behind"),
        (replace(NOTE, records=0, seconds=BEHIND_S + 1), 0, "running"),
        (replace(NOTE, records=None, seconds=None), 0, "running"),
        (NOTE, -1_000_000, "running"),  # the clock of the process is ahead
    ],
)
def test_the_state_of_a_copy(note: CopyNote, after_ms: int, state: str) -> None:
    assert note.state(note.said_ms + after_ms) == state


def test_the_command_that_continues_a_copy_has_all_of_its_options() -> None:
    note = replace(
        NOTE, truncation=False, skip_gaps=True, settings={"ack_quorum": 1, "compress": True}
    )
    assert shlex.split(note.restart()) == [
        "quire", "pipeline", "replicate", "--continuous", "--metadata", "zk://here:2181/ledgers",
        "--namespace", "/shop", "--to", "zk://there:2181/ledgers", "--to-namespace", "/copies",
        "--streams", "orders*", "--keep-truncated", "--skip-gaps", "--set", "ack_quorum=1",
        "--set", "compress=true",
    ]  # fmt: skip
    least = replace(NOTE, target_namespace="/shop", streams="*")
    assert "--to-namespace" not in least.restart()
    assert "--streams" not in least.restart()
    assert "'orders*'" in NOTE.restart()


def test_a_note_contains_no_password_and_no_relative_path() -> None:
    assert shown_uri("sqlite:///there.db") == f"sqlite:///{Path('there.db').absolute()}"
    assert shown_uri("memory://user:secret@here") == "memory://here"
    assert shown_uri("zk://a:1,b:2/ledgers") == "zk://a:1,b:2/ledgers"


def test_a_stopped_copy_is_a_problem_in_both_clusters() -> None:
    stopped = replace(NOTE, records=7)
    (here,) = problems([bookie("a")], WELL, now_ms=200_000, copies=[stopped], own_id="here")
    assert (here.severity, here.since_ms) == ("warn", None)
    assert here.what.startswith(
        "The continuous copy of the streams orders* of /shop to /copies in zk://there:2181/ledgers "
        "has stopped: host.7 last reported 3 min ago, at 1970-01-01T00:00:01Z"
    )
    assert f"with its options for passwords and TLS: {NOTE.restart()}. If nobody" in here.next
    assert here.next.endswith(f"forget it: quire cluster copies --forget {NOTE.name}")
    assert "7 records that were not copied then" in here.risk
    (there,) = problems([bookie("a")], WELL, now_ms=200_000, copies=[stopped], own_id="there")
    assert "of /shop in zk://here:2181/ledgers to /copies has stopped" in there.what
    ended = replace(NOTE, error="no bookie.")
    (found,) = of_copies([ended], "here", 2_000)
    assert "host.7 ended with an error 1 s ago" in found.what
    assert found.what.endswith(": no bookie")


def test_streams_that_failed_and_copies_that_are_behind_are_problems() -> None:
    broken = tuple(StreamLag(f"s{at}", None, None, "it was taken over.") for at in range(3))
    (failed,) = of_copies([replace(NOTE, count=9, failed=40, lags=broken)], "here", 1_000)
    assert failed.what.startswith("40 streams of 9 are no longer copied by host.7")
    assert failed.items == (*(f"s{at}: it was taken over" for at in range(3)), "and 37 more")
    late = replace(NOTE, records=1, seconds=900.0, lags=(StreamLag("orders", 1, 900.0),))
    (behind,) = of_copies([late], "here", 1_000)
    assert "is far behind: 1 record waits to be copied by host.7, the oldest for 15" in behind.what
    assert behind.items == ("orders",)
    assert list(of_copies([NOTE], "here", 1_000)) == []


def test_a_note_tells_of_one_stream() -> None:
    note = replace(NOTE, records=7, seconds=900.0, lags=(StreamLag("orders", 7, 900.0),), count=2)
    assert note.name_of("here", "/shop/orders-eu") == "orders-eu"
    assert note.name_of("here", "/shop/orders/eu") == "orders/eu", (
        "its namespace may be /shop/orders"
    )
    assert note.name_of("there", "/copies/orders") == "orders"
    assert note.name_of("there", "/shop/orders") is None
    assert note.name_of("here", "/shop/visits") is None
    assert note.name_of("here", "/shopping/orders") is None
    assert note.only("orders").state(1_000) == "behind"
    assert note.only("orders-eu").state(1_000) == "running"
    assert note.only("orders-eu").state(1_000 + STALE_MS) == "stopped"
    full = replace(note, lags=tuple(StreamLag(f"{at}", 1, 1.0) for at in range(STREAMS_NAMED_MAX)))
    assert full.of_stream("orders-eu") is None
    assert NOTE.of_stream("orders") is None, "nothing was measured yet"
    assert NOTE.only("orders").records is None
    done = replace(NOTE, **report_of([StreamLag("orders", 0, 0.0)]))
    assert done.of_stream("orders") == StreamLag("orders", 0, 0.0)


async def test_what_failed_and_what_was_measured_is_reported_although_the_rest_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The note said that no stream had failed, and that all were copied up to the end."""
    monkeypatch.setattr(replicate, "MEASURE_TIMEOUT_S", 0.01)
    nothing: Any = None
    job = replicate._Job(
        *[nothing] * 2, "*", True, "raise", {}, 1.0, threading.Event(), *[nothing] * 4
    )
    job.topics = nothing
    copied = SimpleNamespace(segments=0, entries=0, size_bytes=0)
    for name in ("broken", "fine", "slow"):
        job.mirrors[name] = SimpleNamespace(copied=copied)  # type: ignore[assignment]
    job.failed["broken"] = StreamFencedError("it was taken over", remedy="")

    async def measured() -> tuple[int, int, float]:
        return 5, 10, 2.5

    async def never() -> tuple[int, int, float]:
        await asyncio.Event().wait()
        raise AssertionError

    job.lags["fine"] = SimpleNamespace(measure=measured)  # type: ignore[assignment]
    job.lags["slow"] = SimpleNamespace(measure=never)  # type: ignore[assignment]
    assert await job._measure() == [
        StreamLag("broken", error="it was taken over"),
        StreamLag("fine", 5, 2.5),
        StreamLag("slow"),
    ]
    note = replace(NOTE, **report_of(await job._measure()))
    assert note.state(NOTE.said_ms) == "failed"
    assert note.of_stream("slow") == StreamLag("slow")


def test_the_commands_name_a_copy_that_was_killed(tmp_path: Path) -> None:
    """No page and no command told of it: its announcement had disappeared with its process."""
    note = asyncio.run(killed(tmp_path))
    given = ["--metadata", f"sqlite:///{tmp_path}/here.db"]

    def typed(*words: str) -> str:
        found = CliRunner().invoke(cli, [*words, *given])
        assert found.exit_code == 0, found.output
        return found.output

    shown = typed("explain", "cluster")
    assert "The continuous copy of the streams orders* of /shop" in shown
    assert f"quire cluster copies {shlex.join(given)} --forget {note.name}" in shown
    assert f"{note.name} stopped: " in typed("cluster", "copies")
    told = json.loads(typed("cluster", "copies", "--json").splitlines()[0])
    assert (told["name"], told["role"], told["state"]) == (note.name, "source", "stopped")
    about = typed("explain", "stream", "orders", "-n", "/shop")
    assert "! warning: The continuous copy of" in about
    assert "No problems" in typed("explain", "stream", "visits", "-n", "/shop")
    typed("cluster", "copies", "--forget", note.name)
    assert "continuous copy" not in typed("explain", "cluster")
    assert "No problems" in typed("explain", "stream", "orders", "-n", "/shop")
    again = CliRunner().invoke(cli, ["cluster", "copies", "--forget", note.name, *given])
    assert again.exit_code == 2
    assert "has no note of a copy" in again.output


async def killed(directory: Path) -> CopyNote:
    """Make a cluster with two streams, and the note of a copy that was killed."""
    store = await made(directory, "here")
    note = replace(NOTE, source_id=await store.instance_id())
    await CopyReporter([store], note).say(2_000)

    async def nothing(url: str) -> str:
        return ""

    async with Client(store) as client:
        async with await open_namespace(client, "/shop", create=True) as shop:
            await shop.create_stream("orders")
            await shop.create_stream("visits")
        view = ClusterView(SystemClock().monotonic, nothing, wait_s=10)
        state = await view.look(client)
        await view.close()
    assert [one["state"] for one in state.as_json()["copies"]] == ["stopped"]
    assert any("The continuous copy of" in one.what for one in state.problems)
    return note


def test_a_note_tells_of_several_streams_together() -> None:
    lags = (StreamLag("v/0", 7, 900.0), StreamLag("v/1", None, None, "taken over"))
    note = replace(NOTE, records=9, seconds=900.0, lags=lags, count=4, failed=1)
    both = note.only("v/0", "v/2")
    assert (both.count, both.failed, both.records, both.seconds) == (2, 0, 7, 900.0)
    assert both.state(1_000) == "behind"
    broken = note.only("v/0", "v/1")
    assert (broken.failed, broken.records, broken.seconds) == (1, None, None)
    assert note.only("v/2", "v/3").state(1_000) == "running"
    many = (*(StreamLag(f"{at}", 1, 1.0) for at in range(STREAMS_NAMED_MAX - 1)), lags[1])
    part = replace(note, lags=many).only("v/1", "v/2")
    assert (part.count, part.failed, part.lags) == (4, 1, (lags[1],)), "v/2 may be behind"


def test_a_topic_has_the_copies_of_its_partitions_once() -> None:
    """Each partition has the copy on its own page, and the page of the topic had none."""

    async def scene(b: Bench) -> None:
        await b.streams.create_topic("visits", 3)
        own_id = await b.client.metadata.instance_id()
        lags = (StreamLag("visits/1", 7, 900.0), StreamLag("visits/2", 0, 0.0))
        note = replace(
            NOTE, source_id=own_id, source_namespace=b.streams.path, streams="visits/[12]",
            said_ms=b.client.clock.now_ms(), records=7, seconds=900.0, lags=lags, count=2,
        )  # fmt: skip
        value = json.dumps(asdict(note)).encode()
        await b.client.metadata.write_value(("jobs", "copies", note.name), value, None, known=None)
        streams = [f"visits/{at}" for at in range(3)]
        (found,) = await copies_of_topic(b.streams, streams)
        assert (found["partitions"], found["lag"]["records"]) == (2, 7)
        assert found["problem"]["items"] == ("visits/1",)
        assert await copies_of_topic(b.streams, ["visits/0"]) == []

    run(scene)
