"""`replicate` makes the streams of two clusters equal, byte for byte.

QUIRE_REPLICATE_S is the time for which the source is written while processes are killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from quire import blocking
from quire.blocking import Namespace
from quire.blocking.background import call
from quire.cli.cluster.metadata import init as cluster_init
from quire.cli.pipeline.replicate import replicate as command
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import (
    NoSuchNamespaceError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    QuireError,
    StreamDivergedError,
    StreamError,
    StreamFencedError,
    StreamGapError,
    UsageError,
)
from quire.replication.marks.copy_notes import CopyNote, copy_notes
from quire.spark import worker
from quire.spark.jobs import ClusterOptions, preview_replicate
from quire.spark.jobs.replicate import ReplicateResult, replicate
from quire.spark.jobs.replicate_preview import ReplicatePreview
from quire.streams.namespace.namespace import open_namespace
from quire.testing.cluster import LocalCluster
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark

WRITE_S = float(os.environ.get("QUIRE_REPLICATE_S", "3"))
BOOKIES = 4
"""One more than an ensemble has: one may be dead."""
DRIVERS_PER_BOOKIE = 3
"""Killed: a bookie that is started again waits for its old registration to run out."""
LIMIT_S = 60.0
"""The longest wait for an expected event."""
DRIVER = Path(__file__).parents[2] / "support" / "spark" / "replicate_driver.py"
STEPS = (
    "after-name", "before-delete", "before-publish", "after-publish", "before-complete",
    "after-change", "after-claim", "after-make", "after-allocate", "before-name", "after-name",
    "after-delete", "before-copy", "after-copy", "before-change", "before-allocate",
)  # fmt: skip
"""The steps at which drivers are killed, one after the other while time lasts."""


class Side:
    """One of the two clusters, and a client of it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.options = ClusterOptions(cluster.uri)
        self.client = blocking.connect(cluster.uri)

    def namespace(self, path: str, **settings: Any) -> Namespace:
        return self.client.namespace(path, settings=settings, create=True)


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Side, Side]]:
    with LocalCluster(bookies=BOOKIES) as one, LocalCluster(bookies=BOOKIES) as other:
        made = Side(one), Side(other)
        yield made
        for side in made:
            side.client.close()
        worker.close_clients()


@pytest.fixture
def here(sides: tuple[Side, Side]) -> Side:
    return sides[0]


@pytest.fixture
def there(sides: tuple[Side, Side]) -> Side:
    return sides[1]


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/replicas/{request.node.name}"


@pytest.fixture
def run(spark: SparkSession, here: Side, there: Side, path: str) -> Callable[..., ReplicateResult]:
    def started(**how: Any) -> ReplicateResult:
        return replicate(spark, here.options, there.options, path, **how)

    return started


# -- what the same means ----------------------------------------------------------------------


def plain(segment: StreamSegment) -> StreamSegment:
    return replace(segment, ledger_id=0)


def given_up(segment: StreamSegment) -> bool:
    return segment.truncation is Truncation.TRUNCATED


def entries(side: Side, segment: StreamSegment) -> list[bytes]:
    with side.client.open_ledger(segment.ledger_id) as reader:
        return [bytes(entry.payload) for entry in reader.read()]


def check_same(here: Side, there: Side, path: str) -> int:
    """Streams, settings, segments, entries; how many entries there are."""
    count = 0
    with here.client.namespace(path) as source, there.client.namespace(path) as copy:
        assert source.streams() == copy.streams()
        for name in source.streams():
            assert source.stream_settings(name) == copy.stream_settings(name)
            segments = source.segments(name), copy.segments(name)
            # Of the segments that were given up before they were copied, only the newest node may
            # remain.
            first = min([s.lssn for s in segments[1]], default=0)
            assert all(given_up(s) for s in segments[0] if s.lssn < first)
            segments = [s for s in segments[0] if s.lssn >= first], segments[1]
            assert [plain(s) for s in segments[0]] == [plain(s) for s in segments[1]], name
            for one, other in zip(*segments, strict=True):
                if given_up(one):
                    continue
                found = entries(here, one)
                assert found == entries(there, other), (name, one.lssn)
                count += len(found)
            records = [list(side.open_reader(name)) for side in (source, copy)]
            assert records[0] == records[1]
    return count


def check_nothing_left(there: Side, path: str) -> None:
    """Check that every ledger of an attempt is named by a stream."""
    with there.client.namespace(path) as copy:
        named = {s.ledger_id for name in copy.streams() for s in copy.segments(name)}
    left = [
        ledger_id
        for ledger_id in there.client.list_ledgers()
        if there.client.ledger_metadata(ledger_id)
        .custom.get("stream", b"")
        .decode()
        .startswith(path)
        and ledger_id not in named
    ]
    assert not left


def stream_of(custom: Mapping[str, bytes]) -> str:
    return custom.get("stream", b"").decode()


def write(streams: Namespace, name: str, first: int, count: int, *, roll: bool = True) -> None:
    with streams.open_writer(name, create=True) as writer:
        for at in range(first, first + count, 50):
            numbers = range(at, min(at + 50, first + count))
            writer.append_many([b"%d" % n + b"." * 100 + os.urandom(100) for n in numbers])
        if roll:
            writer.roll()
        writer.append(b"the last")


# -- once -------------------------------------------------------------------------------------


def test_one_run_replicates_all_streams(
    here: Side, there: Side, path: str, run: Callable[..., ReplicateResult]
) -> None:
    with here.namespace(path, roll_bytes=64 * 1024) as streams:
        streams.create_stream("packed", settings={"compression": "lz4"})
        streams.create_stream("empty")
        write(streams, "packed", 0, 2_000)
        write(streams, "deep/plain", 0, 1_000)
        with streams.open_writer("marked", create=True) as writer:
            producer = writer.producer("p")
            for n in range(20):
                producer.append(b"%d" % n, n)
            writer.set_fencing_token("mine")
        with streams.open_writer("ended", create=True) as writer:
            writer.append(b"one")
            writer.end_stream()
        streams.truncate("packed", DLSN(3, 1, 0))
    first = run()
    assert first.total("lag_records") == 0
    assert not first.failed
    assert check_same(here, there, path) == first.total("entries")
    check_nothing_left(there, path)
    with there.client.namespace(path) as copy:
        assert copy.own_settings() == {"roll_bytes": 64 * 1024}
        with pytest.raises(QuireError, match="ended"):
            copy.open_writer("ended")
    again = run()
    assert (again.total("segments"), again.total("entries")) == (0, 0)
    with here.client.namespace(path) as streams:
        write(streams, "deep/plain", 1_000, 300)
    more = run(streams="deep/*")
    assert [one.stream for one in more.streams] == ["deep/plain"]
    assert more.total("segments") >= 2
    check_same(here, there, path)
    with there.client.namespace(path) as copy:
        # It continues where the source was: producers and tokens are known.
        writer = copy.open_writer("marked")
        assert writer.producer("p").last_sequence == 19
        with pytest.raises(QuireError, match="fencing token"):
            writer.append(b"x")
        writer.abandon()


def test_a_replication_task_that_dies_is_retried(
    here: Side,
    there: Side,
    path: str,
    run: Callable[..., ReplicateResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    died = str(tmp_path / "died")

    def dying(*given: Any) -> Any:
        from quire.spark.jobs.replicate_copy import copy_piece

        answer = copy_piece(*given)
        if not os.path.exists(died):
            os.close(os.open(died, os.O_CREAT))
            # Its ledger is complete, but nothing refers to it.
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    # By its name, `jobs.replicate` is the function.
    monkeypatch.setattr(sys.modules["quire.spark.jobs.replicate"], "copy_piece", dying)
    with here.namespace(path) as streams:
        write(streams, "s", 0, 200)
    assert run().total("segments") == 2
    assert Path(died).exists()
    check_same(here, there, path)
    check_nothing_left(there, path)


def test_a_segment_in_progress_is_replicated(
    here: Side, there: Side, path: str, run: Callable[..., ReplicateResult]
) -> None:
    with here.namespace(path) as streams, streams.open_writer("s", create=True) as writer:
        writer.append_many([b"%d" % n for n in range(100)])
        assert run().total("lag_records") == 0
        with there.client.namespace(path) as copy:
            assert [r.payload for r in copy.open_reader("s")] == [b"%d" % n for n in range(100)]
            assert run().total("entries") == 0
            writer.append(b"more")
            run()
            assert [r.payload for r in copy.open_reader("s")][-1] == b"more"
            assert copy.segments("s")[0].in_progress
        writer.close()
    run()
    check_same(here, there, path)
    check_nothing_left(there, path)


def test_gaps_in_the_source_are_skipped_only_on_request(
    here: Side, there: Side, path: str, run: Callable[..., ReplicateResult]
) -> None:
    with here.namespace(path, roll_bytes=16 * 1024) as streams:
        write(streams, "s", 0, 500)
        run()
        streams.truncate("s", DLSN(3, 1, 0))
        run()
        with there.client.namespace(path) as copy:
            assert next(iter(copy.open_reader("s"))).position.lssn == 3
        # Records that are truncated before they are copied do not matter if gaps are permitted.
        write(streams, "s", 500, 500)
        newest = streams.segments("s")[-1].lssn
        streams.truncate("s", DLSN(newest, 0, 0))
        with pytest.raises(StreamGapError, match="before they were copied"):
            run(truncation=False)
        run()
        with there.client.namespace(path) as copy:
            found = [list(side.open_reader("s")) for side in (streams, copy)]
        assert found[0] == found[1]
        assert found[0]


# -- what cannot be a copy --------------------------------------------------------------------


def test_another_writer_of_the_target_ends_the_replication(
    here: Side, there: Side, path: str, run: Callable[..., ReplicateResult]
) -> None:
    with here.namespace(path) as streams, there.namespace(path) as copy:
        write(streams, "s", 0, 10)
        write(copy, "s", 0, 10)
        with pytest.raises(StreamDivergedError, match="not made by replication"):
            run()
        copy.delete_stream("s")
        run()
        write(copy, "s", 0, 10)
        before = copy.segments("s")
        with pytest.raises(StreamDivergedError, match="another writer has written"):
            run()
        assert copy.segments("s") == before
        copy.delete_stream("s")
        run()
        streams.delete_stream("s")
        write(streams, "s", 0, 20)
        with pytest.raises(StreamDivergedError, match="deleted or renamed"):
            run()
        with pytest.raises(NoSuchStreamError, match="nothing"):
            run(streams="nothing*")
        # One that fails is no reason for the others to.
        write(streams, "t", 0, 20)
        result = run()
        assert [one.stream for one in result.failed] == ["s"]
        assert "deleted or renamed" in result.failed[0].error


def test_another_writer_of_the_target_ends_a_following_replication(
    here: Side, there: Side, path: str, run: Callable[..., ReplicateResult]
) -> None:
    with (
        here.namespace(path) as streams,
        there.namespace(path) as copy,
        streams.open_writer("s", create=True) as writer,
    ):
        writer.append(b"one")
        with following(run) as followed:
            wait_for(lambda: copy.exists("s") and bool(copy.segments("s")), "no segment")
            assert [one.error for one in [*notes(here, path), *notes(there, path)]] == ["", ""]

            def ended() -> bool:
                # It may open the stream after our first writer, without ever noticing it.
                copy.open_writer("s").abandon()
                writer.append(b"more")
                followed.thread.join(1)
                return not followed.thread.is_alive()

            wait_for(ended, "it goes on behind another writer")
            assert isinstance(followed.error, StreamFencedError), followed.error
            for side in (here, there):
                (note,) = notes(side, path)
                assert "taken over by another writer" in note.error
        # A run that ends as it was told to removes the note.
        copy.delete_stream("s")
        with following(run) as followed:
            wait_for(lambda: copy.exists("s") and bool(copy.segments("s")), "no segment")
        assert followed.error is None
        assert notes(here, path) == notes(there, path) == []


def notes(side: Side, path: str) -> list[CopyNote]:
    """Return the notes of continuous copies from or to a namespace."""
    found = call(copy_notes(side.client.aio.metadata))
    return [one for one in found if path in (one.source_namespace, one.target_namespace)]


def test_a_replication_onto_itself_is_refused(here: Side, path: str, spark: SparkSession) -> None:
    here.namespace(path).close()
    with pytest.raises(UsageError, match="onto itself"):
        replicate(spark, here.options, here.options, path)


# -- topics -----------------------------------------------------------------------------------


def test_the_copy_of_a_topic_is_a_topic(
    here: Side, there: Side, path: str, run: Callable[..., ReplicateResult]
) -> None:
    with here.namespace(path) as streams:
        streams.create_topic("visits", 3)
        topic = streams.topic("visits")
        with topic.open_writer() as writer:
            writer.append_many([b"%d" % n for n in range(100)], keys=[str(n) for n in range(100)])
        first = run(streams="visits/[01]")
        assert first.topics == ()
        planned = preview_replicate(here.options, there.options, path)
        assert planned.topics == ("visits",)
        assert run().topics == ("visits",)
        check_same(here, there, path)
        with there.client.namespace(path) as copies:
            copy = copies.topic("visits")
            assert copy.partitions == 3
            assert {(r.partition, r.key, r.value) for r in copy.open_reader()} == {
                (r.partition, r.key, r.value) for r in topic.open_reader()
            }
            assert preview_replicate(here.options, there.options, path).topics == ()

            # A topic that is created while a continuous run goes on.
            done, stop = [], threading.Event()
            following = threading.Thread(
                target=lambda: done.append(run(continuous=True, stop=stop))
            )
            following.start()
            try:
                streams.create_topic("late", 2)
                wait_for(lambda: "late" in copies.topics(), "the topic was not created")
            finally:
                stop.set()
                following.join()
            assert done[0].topics == ("late",)


def test_a_conflicting_topic_is_refused_before_anything_is_copied(
    spark: SparkSession, here: Side, there: Side, path: str
) -> None:
    with here.namespace(path) as streams, there.namespace(path) as copies:
        streams.create_topic("visits", 3)
        copies.create_topic("visits", 2)
        to = ("--to", there.cluster.uri)
        alone = invoke(spark, here, path, *to).exception
        assert isinstance(alone, StreamDivergedError)
        assert "has 3 partitions, and the topic of this name" in str(alone)
        write(streams, "s", 0, 10)
        for more in ((), ("--dry-run",)):
            refused = invoke(spark, here, path, *to, *more)
            assert refused.return_value == 1
            (error,) = refused.stderr.splitlines()[-1:]
            assert error.startswith("error: topic visits was not copied: it has 3 partitions")
            assert refused.stderr.count("error: ") == 1
        assert copies.streams() == ["s", "visits/0", "visits/1"]


# -- from the command line, and where there is no cluster --------------------------------------


def invoke(spark: SparkSession, here: Side, path: str, *arguments: str) -> Result:
    given = ["--metadata", here.cluster.uri, "--namespace", path, *arguments]
    return CliRunner().invoke(command, given, standalone_mode=False)


def test_the_replicate_command_copies_a_stream(
    spark: SparkSession, here: Side, there: Side, path: str
) -> None:
    with here.namespace(path) as streams:
        write(streams, "s", 0, 100)
        to = ("--to", there.cluster.uri, "--to-namespace", f"{path}/copy")
        done = invoke(spark, here, path, *to, "--set", "write_quorum=2", "--json")
        assert done.return_value is None, done.output
        [one] = json.loads(done.stdout)["streams"]
        assert (one["stream"], one["segments"], one["lag_records"]) == ("s", 2, 0)
        with there.client.namespace(f"{path}/copy") as copy:
            assert copy.stream_settings("s").write_quorum == 2
            write(copy, "s", 0, 10)
        write(streams, "t", 0, 10)
        failed = invoke(spark, here, path, *to, "--set", "write_quorum=2")
        assert failed.return_value == 1
        assert failed.stdout.startswith("1 stream: 2 segments completed")
        assert failed.stderr.startswith("error: stream s of the target namespace has segment")
        assert len(failed.stderr.splitlines()) == 1


def test_a_replication_dry_run_predicts_the_run(
    here: Side, there: Side, path: str, run: Callable[..., ReplicateResult]
) -> None:
    """A dry run changes nothing: not even the namespace of the copies is created."""

    def planned(**how: Any) -> ReplicatePreview:
        return preview_replicate(here.options, there.options, path, **how)

    with pytest.raises(UsageError, match="on_gap must be one of raise, skip"):
        planned(on_gap="ignore")
    with here.namespace(path) as streams, streams.open_writer("live", create=True) as writer:
        write(streams, "s", 0, 200)
        writer.append_many([b"%d" % n for n in range(100)])
        live, plan = planned().streams
        with pytest.raises(NoSuchNamespaceError):
            there.client.namespace(path)
        done = run().streams
        assert (live.new, live.segments, live.in_progress, live.records) == (True, 0, True, 100)
        assert (plan.new, plan.in_progress, plan.records) == (True, False, 201)
        assert (plan.segments, plan.bytes) == (done[1].segments, done[1].bytes)
        assert live.bytes == done[0].bytes
        again = planned()
        assert (again.total("segments"), again.total("bytes")) == (0, 0)
        assert not any(one.new or one.in_progress for one in again.streams)
        writer.append(b"more")
        streams.truncate("s", DLSN(2, 0, 0))
        with there.client.namespace(path) as copy:
            before = copy.segments("s")
            live, plan = planned().streams
            assert live.in_progress
            assert plan.freed_ledgers == (before[0].ledger_id,)
            assert planned(truncation=False).streams[1].freed_ledgers == ()
            assert copy.segments("s") == before
            assert not planned().failed
            write(copy, "s", 0, 10)
            [refused] = planned().failed
            assert refused.stream == "s"
            assert "another writer" in refused.error
    with pytest.raises(NoSuchStreamError):
        planned(streams="none*")
    with pytest.raises(UsageError, match="onto itself"):
        preview_replicate(here.options, here.options, path)


def test_the_replicate_command_has_a_dry_run(
    spark: SparkSession, here: Side, there: Side, path: str
) -> None:
    to = ("--to", there.cluster.uri, "--dry-run")
    with here.namespace(path) as streams:
        write(streams, "s", 0, 100)
        said = invoke(spark, here, path, *to)
        assert said.return_value is None, said.output
        assert said.stdout.startswith("stream s (new): 2 segments, 101 records, ")
        told = json.loads(invoke(spark, here, path, *to, "--json").stdout)
        assert (told["dry_run"], told["segments"]) == (True, 2)
        there.namespace(path).close()
        with there.client.namespace(path) as strange:
            write(strange, "s", 0, 10)
        refused = invoke(spark, here, path, *to)
        assert refused.return_value == 1
        assert refused.stderr.startswith("error: stream s of the target namespace already exists")


def test_a_target_without_bookies_is_an_error(
    spark: SparkSession, here: Side, path: str, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path}/empty.db"
    assert CliRunner().invoke(cluster_init, ["--metadata", uri]).exit_code == 0
    with here.namespace(path) as streams:
        write(streams, "s", 0, 100)
    with pytest.raises(NotEnoughBookiesError):
        replicate(spark, here.options, ClusterOptions(uri), path, patience_s=0.5)


# -- continuously -----------------------------------------------------------------------------


class Followed:
    def __init__(self, run: Callable[..., ReplicateResult]) -> None:
        self.stop = threading.Event()
        self.reports: list[ReplicateResult] = []
        self.result: ReplicateResult | None = None
        self.error: Exception | None = None
        self._run = run
        self.thread = threading.Thread(target=self._follow)

    def _follow(self) -> None:
        try:
            self.result = self._run(continuous=True, stop=self.stop, report=self.reports.append)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error


@contextmanager
def following(run: Callable[..., ReplicateResult]) -> Iterator[Followed]:
    followed = Followed(run)
    followed.thread.start()
    try:
        yield followed
    finally:
        followed.stop.set()
        followed.thread.join(LIMIT_S)
        assert not followed.thread.is_alive()


class Source:
    """Writes a stream in segments until told to stop."""

    PER_APPEND = 20

    def __init__(self, side: Side, path: str, name: str, settings: dict[str, Any]) -> None:
        self._side, self._path, self._name = side, path, name
        with side.client.namespace(path) as streams:
            streams.create_stream(name, settings=settings)
        self._stop = threading.Event()
        self.count = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        try:
            with (
                self._side.client.namespace(self._path) as streams,
                streams.open_writer(self._name) as writer,
            ):
                while not self._stop.wait(0.02):
                    numbers = range(self.count, self.count + self.PER_APPEND)
                    writer.append_many([b"%d " % n + os.urandom(60) for n in numbers])
                    self.count += self.PER_APPEND
        except BaseException as error:  # noqa: BLE001 - raised by `close`
            self.error = error

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


class Reader:
    """Follows the copy all the time."""

    def __init__(self, side: Side, path: str, name: str) -> None:
        self.numbers: list[int] = []
        self.error: BaseException | None = None
        self._stopped = False
        self._work = asyncio.run_coroutine_threadsafe(
            self._read(side, path, name), loop_of(side.client)
        )

    async def _read(self, side: Side, path: str, name: str) -> None:
        async with await open_namespace(side.client.aio, path) as streams:
            async for record in await streams.open_reader(name, follow=True):
                self.numbers.append(int(record.payload.split()[0]))

    def check(self) -> None:
        if self._work.done():
            self._work.result()

    def close(self) -> None:
        self._work.cancel()


def loop_of(client: blocking.Client) -> asyncio.AbstractEventLoop:
    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    return call(running())


class Driver:
    """A process that replicates."""

    def __init__(self, here: Side, there: Side, path: str, scratch: Path, **more: Any) -> None:
        given = {
            "source": here.cluster.uri, "target": there.cluster.uri, "namespace": path,
            "scratch": str(scratch), "kill": "", "continuous": True, **more,
        }  # fmt: skip
        self._log = (scratch / "driver.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(given)],
            stdout=self._log, stderr=self._log, cwd=scratch, start_new_session=True,
        )  # fmt: skip

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(LIMIT_S)

    def kill(self) -> None:
        """All processes of its session, which is of our making."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._log.close()


@pytest.mark.long
def test_a_following_replication_survives_crashes(
    here: Side, there: Side, path: str, run: Callable[..., ReplicateResult], tmp_path: Path
) -> None:
    here.namespace(path, roll_bytes=64 * 1024).close()
    sources = [
        Source(here, path, "plain", {}),
        Source(here, path, "packed", {"compression": "lz4"}),
    ]
    injected = killed = 0
    reader: Reader | None = None
    try:
        ends = time.monotonic() + WRITE_S
        steps = iter(STEPS)
        while time.monotonic() < ends or not injected:
            step = next(steps, "")
            driver = Driver(here, there, path, tmp_path, kill=step)
            try:
                if step:
                    assert driver.wait() == -signal.SIGKILL, (tmp_path / "driver.log").read_text()
                else:
                    enough = counted(there, path) + 2
                    wait_for(lambda: counted(there, path) >= enough, "nothing was copied")  # noqa: B023
            finally:
                driver.kill()
            assert len(notes(here, path)) == len(notes(there, path)) == 1, "it was killed"
            injected += 1
            if injected % DRIVERS_PER_BOOKIE == 1:
                for side in (here, there):
                    replace_dead(side.cluster)
                killed += 2
            if reader is None and counted(there, path):
                reader = Reader(there, path, "plain")
            if reader is not None:
                reader.check()
        with following(run) as followed:
            if reader is None:
                wait_for(lambda: bool(counted(there, path)), "nothing was copied")
                reader = Reader(there, path, "plain")
            for source in sources:
                source.close()
            wait_for(
                lambda: (
                    followed.error is not None
                    or (bool(followed.reports) and arrived(here, there, path))
                ),
                "the copy does not arrive",
            )
        assert followed.error is None
        assert followed.result is not None
        assert followed.result.total("lag_records") == 0
        total = sources[0].count
        wait_for(lambda: len(reader.numbers) >= total, "the reader of the copy does not arrive")
        reader.check()
        assert reader.numbers == list(range(total))
    finally:
        for source in sources:
            source.close()
        if reader is not None:
            reader.close()
    entries_copied = check_same(here, there, path)
    check_nothing_left(there, path)
    assert notes(here, path) == notes(there, path) == [], "those of killed drivers were replaced"
    print(
        f"\n{total} records in {entries_copied} entries, {injected} drivers and {killed} bookies "
        "killed"
    )


def replace_dead(cluster: LocalCluster) -> None:
    """Kill a bookie, and start the one that was killed before."""
    dead = [at for at, bookie in enumerate(cluster.bookies) if not bookie.alive]
    for at in dead:
        cluster.bookies[at].start()
    cluster.bookies[(dead[0] + 1) % BOOKIES if dead else 0].kill()


def counted(side: Side, path: str) -> int:
    """Completed segments of the copies."""
    try:
        with side.client.namespace(path) as copy:
            segments = [s for name in copy.streams() for s in copy.segments(name)]
    except StreamError:
        return 0
    return sum(not segment.in_progress for segment in segments)


def arrived(here: Side, there: Side, path: str) -> bool:
    with here.client.namespace(path) as source, there.client.namespace(path) as copy:
        return all(
            [plain(s) for s in source.segments(name)] == [plain(s) for s in copy.segments(name)]
            for name in source.streams()
        )
