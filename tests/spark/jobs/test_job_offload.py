"""Closed segments to Parquet: what is copied, when space is freed, and what failed jobs leave."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from quire import blocking
from quire.blocking import Namespace
from quire.cli.main import cli
from quire.errors import (
    HistoryDamagedError,
    HistoryError,
    LaterHistoryError,
    NoSuchLedgerError,
    NoSuchStreamError,
    StreamDamagedError,
    StreamGapError,
    StreamLockedError,
    UsageError,
)
from quire.spark.jobs import ClusterOptions, history, preview_offload
from quire.spark.jobs.archive import manifest as manifests
from quire.spark.jobs.archive.manifest import (
    DATA,
    MANIFESTS,
    Manifest,
    OffloadClaim,
    OffloadHistory,
)
from quire.spark.jobs.archive.parquet_files import Digest, read_file, verify_file, write_piece
from quire.spark.jobs.archive.store import ArchiveDirectory
from quire.spark.jobs.history import check_history
from quire.spark.jobs.offload import OffloadResult, StreamPreview
from quire.streams import DLSN, StreamSegment
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.spark.offloads import (
    NAMESPACE,
    Run,
    counted_files,
    data_files,
    facts,
    facts_of_rows,
    offloaded,
    offloader,
)
from tests.support.spark.streams import append, numbered

pytestmark = pytest.mark.spark


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "history"


@pytest.fixture
def run(spark: SparkSession, cluster: LocalCluster, name: str, target: Path) -> Run:
    return offloader(spark, cluster.uri, name, target)


def manifest_of(target: Path, name: str) -> Manifest:
    found = OffloadHistory(str(target), name).newest()
    assert found is not None
    return found


# -- what is copied ---------------------------------------------------------------------------


@pytest.mark.parametrize("txids", long_after(1, ["time", "given"]))
def test_offloaded_files_have_all_records_of_the_stream(
    streams: Namespace, name: str, target: Path, run: Run, txids: str
) -> None:
    """All columns as a reader gives them; small segments share files, large ones have several."""
    streams.create_stream(name, settings={"txids": txids, "entry_bytes": 2048})
    given = iter(range(0, 10**9, 10))
    with streams.open_writer(name) as writer:
        for count, size in ((300, 0), (40, 7), (2_000, 50), (10, 5_000), (60, 0)):
            payloads = numbered(0, count, size)
            numbers = [next(given) for _ in payloads] if txids == "given" else None
            writer.append_many(payloads, txids=numbers)
            writer.roll()
        expected = facts(streams, name)
        result = run(file_bytes=32_768)
        last = [{"txids": [next(given)]} if txids == "given" else {}][0]
        writer.append_many([b"live"], **last)  # opens the next segment
    assert (result.records, result.streams[0].total_records) == (2_410, 2_410)
    assert offloaded(target, name) == expected
    made = manifest_of(target, name)
    segments = [(file.first.lssn, file.last.lssn) for file in made.files]
    assert segments[0] == (1, 2)
    assert len([pair for pair in segments if pair == (3, 3)]) > 2
    assert (made.start, made.behind, made.sequence) == (DLSN(1, 0, 0), DLSN(6, 0, 0), 2_410)
    assert all(file.times_us is not None for file in made.files)
    assert streams.segments(name)[0].lssn == 1, "nothing was truncated"


def test_later_runs_add_segments_closed_since_then(
    streams: Namespace, name: str, target: Path, run: Run
) -> None:
    append(streams, name, numbered(0, 200), segments=2)
    assert run().records == 200
    before = counted_files(target, name)
    assert run().as_json()["records"] == 0
    append(streams, name, numbered(200, 300))
    result = run(truncate=True)
    assert (result.records, result.streams[0].total_records) == (100, 300)
    assert before < counted_files(target, name)
    assert [value for *_, value in offloaded(target, name)] == numbered(0, 300)


def test_records_truncated_before_the_first_run_are_not_missed(
    streams: Namespace, name: str, target: Path, run: Run
) -> None:
    """Records truncated before, in the middle of a segment, are not missed."""
    append(streams, name, numbered(0, 300), segments=3)
    everything = facts(streams, name)
    streams.truncate(name, everything[130][0])
    assert run().records == 170
    assert offloaded(target, name) == everything[130:]
    assert manifest_of(target, name).start == everything[130][0]


def test_empty_segments_and_streams_are_offloaded(
    streams: Namespace, name: str, target: Path, run: Run
) -> None:
    streams.create_stream(name)
    assert run(truncate=True).as_json()["streams"][0]["behind"] == "1:0:0"
    with streams.open_writer(name) as writer:
        writer.set_fencing_token("t")  # a segment without records
        writer.roll()
        writer.append(b"one", token="t")
        writer.end_stream()
    result = run()
    assert result.records == 1
    assert offloaded(target, name) == facts(streams, name)


def test_segments_are_selected_by_age_and_size(
    client: blocking.Client, streams: Namespace, name: str, run: Run
) -> None:
    append(streams, name, numbered(0, 400, 100), segments=4)
    assert run(older_than_s=3_600.0).records == 0
    ledgers = [client.ledger_metadata(s.ledger_id).length for s in streams.segments(name)]
    assert run(larger_than=10 * sum(ledgers)).records == 0
    assert run(larger_than=sum(ledgers[1:])).records == 100
    assert run(larger_than=sum(ledgers[3:]), older_than_s=3_600.0).records == 200
    assert run(older_than_s=0.0).records == 100


def test_several_streams_are_offloaded_independently(
    client: blocking.Client, streams: Namespace, name: str, target: Path, run: Run
) -> None:
    """A stream that cannot be offloaded does not stop the others."""
    for at, one in enumerate(("a", "nested/b", "c")):
        append(streams, f"{name}/{one}", numbered(0, 100 * (at + 1)), segments=2)
    client.delete_ledger(streams.segments(f"{name}/c")[0].ledger_id)
    result = run(streams=[f"{name}/*"])
    assert {one.stream: one.records for one in result.streams} == {
        f"{name}/a": 100, f"{name}/nested/b": 200,
    }  # fmt: skip
    assert [type(error) for error in result.failed.values()] == [StreamGapError]
    failed = result.as_json()["failed"][f"{name}/c"]
    assert "records from 1:0:0 to just before 2:0:0 are lost" in failed
    assert len(offloaded(target, f"{name}/nested/b")) == 200
    with pytest.raises(NoSuchStreamError, match="matches nothing-\\*"):
        run(streams=["nothing-*"])
    with pytest.raises(NoSuchStreamError, match="absent does not exist"):
        run(streams="absent")


def test_a_failing_directory_is_detected_once(
    streams: Namespace, name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing directory is detected once, not by each of many streams."""
    for one in "abcdef":
        append(streams, f"{name}/{one}", numbered(0, 10))
    asked = []

    def fails(self: OffloadHistory) -> OffloadClaim:
        asked.append(self.stream)
        raise HistoryError("the store is gone")

    monkeypatch.setattr(OffloadHistory, "claim", fails)
    with pytest.raises(HistoryError, match="the store is gone"):
        run(streams=[f"{name}/*"])
    assert asked == [f"{name}/a", f"{name}/b", f"{name}/c"]


# -- truncation -------------------------------------------------------------------------------


def test_truncation_after_an_offload_frees_the_bookies(
    streams: Namespace, client: blocking.Client, name: str, target: Path, run: Run
) -> None:
    append(streams, name, numbered(0, 500), segments=5)
    segments, expected = streams.segments(name), facts(streams, name)
    assert run().freed_ledgers == 0
    with streams.open_writer(name) as writer:
        writer.append(b"live")
        result = run(truncate=True)
        assert [value for *_, value in facts(streams, name)] == [b"live"]
    assert result.records == 0
    # The newest completed one stays: the sequence numbers of the next build on it.
    assert result.streams[0].freed_ledgers == tuple(s.ledger_id for s in segments[:-1])
    for segment in segments[:-1]:
        with pytest.raises(NoSuchLedgerError):
            client.ledger_metadata(segment.ledger_id)
    assert offloaded(target, name) == expected


def test_an_offload_dry_run_predicts_the_run(
    cluster: LocalCluster, streams: Namespace, name: str, target: Path, run: Run
) -> None:
    """A dry run changes neither the stream nor the directory, which need not exist."""

    def planned(**options: Any) -> StreamPreview:
        (found,) = preview_offload(
            ClusterOptions(cluster.uri), NAMESPACE, name, str(target), **options
        )
        return found

    append(streams, name, numbered(0, 500), segments=5)
    before = streams.segments(name)
    plan = planned(truncate=True)
    assert streams.segments(name) == before
    assert not target.exists()
    done = run(truncate=True).streams[0]
    assert (plan.segments, plan.files) == (5, done.files)
    assert (plan.behind, plan.ledger_bytes) == (done.behind, done.ledger_bytes)
    assert plan.freed_ledgers == done.freed_ledgers == tuple(s.ledger_id for s in before[:-1])
    again = planned(truncate=True)
    assert (again.start, again.segments, again.files) == (done.behind, 0, 0)
    assert (again.ledger_bytes, again.freed_ledgers) == (0, ())
    append(streams, name, numbered(500, 600), segments=1)
    assert planned().freed_ledgers == ()
    assert planned(older_than_s=3_600.0).segments == 0
    assert planned().segments == 1


def test_the_offload_command_has_a_dry_run(
    cluster: LocalCluster, streams: Namespace, name: str, target: Path
) -> None:
    append(streams, name, numbered(0, 100), segments=2)
    given = [
        "pipeline", "offload", name, "--namespace", NAMESPACE, "--metadata", cluster.uri,
        "--directory", str(target), "--truncate", "--dry-run",
    ]  # fmt: skip
    said = CliRunner().invoke(cli, given, standalone_mode=False).output
    assert "2 segments" in said
    assert "1 ledger would be freed" in said
    told = json.loads(CliRunner().invoke(cli, [*given, "--json"], standalone_mode=False).output)
    assert told["dry_run"]
    assert told["streams"][0]["segments"] == 2
    assert not target.exists()


def test_records_lost_before_the_offload_are_reported(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, target: Path,
    run: Run,
) -> None:  # fmt: skip
    append(streams, name, numbered(0, 300), segments=3)
    assert run().records == 300
    append(streams, name, numbered(300, 500), segments=2)
    streams.truncate(name, DLSN(5, 0, 0))
    with pytest.raises(StreamGapError, match=r"4:0:0 to just before 5:0:0 are truncated"):
        run(truncate=True)
    assert run(fail_on_data_loss=False).records == 100
    assert [str(gap) for gap in manifest_of(target, name).gaps] == [
        "records from 4:0:0 to just before 5:0:0 are truncated"
    ]
    read = (spark, ClusterOptions(cluster.uri), NAMESPACE, name, str(target))
    with pytest.raises(StreamGapError, match=r"4:0:0 to just before 5:0:0"):
        history(*read)
    assert history(*read, fail_on_data_loss=False).count() == 400
    assert history(*read, start="seq:400").count() == 100


@pytest.mark.parametrize("when", long_after(1, ["completed", "in-progress"]))
def test_a_segment_without_its_ledger_is_skipped_only_on_request(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, streams: Namespace,
    name: str, target: Path, run: Run, when: str,
) -> None:  # fmt: skip
    """Lost when it was completed, or while it was written: passed over only if asked."""
    append(streams, name, numbered(0, 100))
    writer = streams.open_writer(name)
    writer.append_many(numbered(100, 200))
    if when == "completed":
        writer.close()
    else:
        writer.abandon()
    client.delete_ledger(streams.segments(name)[1].ledger_id)
    append(streams, name, numbered(200, 300))
    gap = "records from 2:0:0 to just before 3:0:0 are lost"
    with pytest.raises(StreamGapError, match=gap):
        run()
    assert run(fail_on_data_loss=False).records == 200
    assert [str(one) for one in manifest_of(target, name).gaps] == [gap]
    read = (spark, ClusterOptions(cluster.uri), NAMESPACE, name, str(target))
    with pytest.raises(StreamGapError, match=gap):
        history(*read)
    assert history(*read, fail_on_data_loss=False).count() == 200


@pytest.mark.parametrize("harm", ["missing", "shorter"])
def test_no_stream_is_truncated_if_files_are_missing(
    streams: Namespace, name: str, target: Path, run: Run, harm: str
) -> None:
    append(streams, name, numbered(0, 300), segments=3)
    run()
    [file] = counted_files(target, name)
    path = Path(OffloadHistory(str(target), name).store.path(f"{DATA}/{file}"))
    if harm == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(HistoryDamagedError, match="records 1:0:0 to 3:0:"):
        run(truncate=True)
    assert len(facts(streams, name)) == 300


# -- what is verified -------------------------------------------------------------------------


@pytest.mark.parametrize("at", [5, 700, -700])
def test_a_file_that_differs_from_the_written_bytes_is_rejected(
    cluster: LocalCluster, client: blocking.Client, streams: Namespace, name: str, target: Path,
    monkeypatch: pytest.MonkeyPatch, at: int,
) -> None:  # fmt: skip
    """The disk changes a byte between writing and reading back, even one that no column shows."""
    append(streams, name, numbered(0, 300, 50))
    claim = OffloadHistory(str(target), name).claim()
    settle = ArchiveDirectory.settle

    def harmful(store: ArchiveDirectory, what: str) -> None:
        settle(store, what)
        flip(Path(store.path(what)), at)

    monkeypatch.setattr(ArchiveDirectory, "settle", harmful)
    [segment] = streams.segments(name)
    piece = {
        "directory": str(target), "stream": name, "label": claim.label, "txid_is_time": True,
        "compression": "none", "by_date": False,
        "parts": [[segment.to_bytes().decode(), 0, segment.last_entry_id]],
    }  # fmt: skip
    with pytest.raises(HistoryDamagedError, match="is not as it was written"):
        write_piece(ClusterOptions(cluster.uri), piece)
    monkeypatch.undo()
    [answer] = write_piece(ClusterOptions(cluster.uri), piece)["files"]
    assert answer["segments"] == {"1": [300, 0, 299]}


def test_check_finds_damage(
    spark: SparkSession, streams: Namespace, name: str, target: Path, run: Run
) -> None:
    append(streams, name, numbered(0, 3_000, 50), segments=3)
    run(file_bytes=65_536)
    assert check_history(spark, name, str(target)) == []
    names = sorted(counted_files(target, name))
    flip(Path(OffloadHistory(str(target), name).store.path(f"{DATA}/{names[1]}")), 2_000)
    [wrong] = check_history(spark, name, str(target))
    assert names[1] in wrong


def test_digests_detect_every_difference(
    streams: Namespace, name: str, target: Path, run: Run
) -> None:
    """Digests notice any change of any value, however records are divided into batches."""
    append(streams, name, numbered(0, 200), segments=2)
    run()
    found = OffloadHistory(str(target), name)
    [file] = manifest_of(target, name).files
    table = pa.Table.from_batches(read_file(found, file.name))
    for size in (1, 7, 1_000):
        digest = digested(name, table.to_batches(max_chunksize=size))
        assert digest.as_file(file.name, 0, 0).digests == file.digests
        assert (digest.first, digest.last, digest.rows) == (file.first, file.last, 200)
    for column, value in (("ledger", 10**9), ("txid", 5), ("time", None), ("value", b"XXX")):
        rows = table.to_pylist()
        rows[150][column] = value
        digest = digested(name, pa.Table.from_pylist(rows, table.schema).to_batches())
        texts = digest.texts()
        assert [n for n, text in texts.items() if text != file.digests[n]] == [column]
    rows = table.to_pylist()
    for wrong in (
        [*rows[:50], *rows[51:]],  # one is missing
        [*rows[:50], *rows[49:]],  # One row exists twice.
        [*rows[:50], rows[51], rows[50], *rows[52:]],
        [*rows[100:], *rows[:100]],
    ):
        for size in (1, 1_000):
            batches = pa.Table.from_pylist(wrong, table.schema).to_batches(max_chunksize=size)
            with pytest.raises(StreamDamagedError, match="not consecutive"):
                digested(name, batches)


def digested(name: str, batches: Sequence[pa.RecordBatch]) -> Digest:
    digest = Digest(name)
    for batch in batches:
        digest.add(batch)
    return digest


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[min(at, len(data) // 2)] ^= 0x40
    path.write_bytes(data)


# -- jobs that end before they are done, and two at once --------------------------------------

STEPS = {
    "claimed": (OffloadClaim, "settle", False),
    "copied": (OffloadClaim, "commit", False),
    "committed": (OffloadClaim, "commit", True),
    "truncated": (OffloadClaim, "sweep", False),
}
"""The steps that are no longer executed, or the last one that is."""


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", long_after(2, STEPS))
def test_an_offload_can_be_interrupted_at_any_step(
    streams: Namespace, client: blocking.Client, name: str, target: Path, run: Run,
    monkeypatch: pytest.MonkeyPatch, step: str,
) -> None:  # fmt: skip
    """The second job ends early, with a manifest of the first. The third job finishes."""
    append(streams, name, numbered(0, 200), segments=2)
    everything = facts(streams, name)
    run(truncate=True)
    append(streams, name, numbered(200, 600), segments=4)
    everything += facts(streams, name)
    kind, method, behind = STEPS[step]
    original = getattr(kind, method)
    calls: list[int] = []

    def ends(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        # The first commit, and the first sweep, belong to the beginning of a job.
        if len(calls) < (1 if step == "claimed" else 2):
            return original(self, *arguments)
        if behind:
            original(self, *arguments)
        raise Killed

    monkeypatch.setattr(kind, method, ends)
    with pytest.raises(Killed):
        run(truncate=True, turn_bytes=1)
    monkeypatch.undo()
    kept = len(offloaded(target, name))
    assert kept == {"claimed": 200, "copied": 200, "committed": 300, "truncated": 600}[step]
    assert run(truncate=True).records == 600 - kept
    assert offloaded(target, name) == everything
    assert data_files(target, name) == counted_files(target, name)
    segments = streams.segments(name)
    assert [client.ledger_metadata(s.ledger_id).closed for s in segments[-1:]] == [True]


def test_the_second_of_two_jobs_waits_and_fails(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, target: Path,
    run: Run, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    append(streams, name, numbered(0, 300), segments=3)
    inside, go_on = threading.Event(), threading.Event()
    settle = OffloadClaim.settle

    def waiting(self: OffloadClaim, manifest: Manifest) -> None:
        inside.set()
        assert go_on.wait(60.0)
        settle(self, manifest)

    monkeypatch.setattr(OffloadClaim, "settle", waiting)
    results: list[OffloadResult] = []
    first = threading.Thread(target=lambda: results.append(run()))
    first.start()
    try:
        assert inside.wait(60.0)
        monkeypatch.undo()
        with pytest.raises(StreamLockedError, match=f"another job is offloading stream {name}"):
            run()
    finally:
        go_on.set()
        first.join()
    assert results[0].records == 300
    assert run().records == 0


def test_a_job_that_was_presumed_dead_changes_nothing(
    streams: Namespace, client: blocking.Client, name: str, target: Path, run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It lost the lock without noticing, and another job did everything.

    It neither truncates by its own knowledge nor removes anything of the other job.
    """
    append(streams, name, numbered(0, 300), segments=3)
    commit = OffloadClaim.commit
    others: list[OffloadResult] = []

    def overtaken(self: OffloadClaim, made: Manifest) -> None:
        monkeypatch.undo()
        lock_free(streams, name)
        others.append(run())
        commit(self, made)

    monkeypatch.setattr(OffloadClaim, "commit", overtaken)
    with pytest.raises(HistoryError, match="another job has begun"):
        run(truncate=True)
    assert others[0].records == 300
    assert len(facts(streams, name)) == 300, "nothing was truncated"
    assert [value for *_, value in offloaded(target, name)] == numbered(0, 300)
    assert run(truncate=True).records == 0
    assert data_files(target, name) == counted_files(target, name)


def lock_free(streams: Namespace, name: str) -> None:
    """Release the lock as if the session of its holder had ended."""
    from urllib.parse import quote

    from quire.blocking.background import call

    tree = streams.aio.client.metadata.tree
    call(tree.delete_tree(f"{NAMESPACE}/.quire/offloads/{quote(name, safe='')}"))


def test_alternating_jobs_follow_their_claims(tmp_path: Path, name: str) -> None:
    """Two jobs take turns with claims, step by step."""
    found = OffloadHistory(str(tmp_path), name)
    empty = Manifest("c", "/n", name, "life", DLSN(1, 0, 0), DLSN(1, 0, 0))

    def made(behind: int) -> Manifest:
        return manifests.with_files(empty, [], [], DLSN(behind, 0, 0), None, behind)

    one = found.claim()
    one.settle(empty)
    one.commit(made(2))
    assert found.newest() == made(2)
    two = found.claim()
    assert two.manifest == made(2)
    with pytest.raises(HistoryError):  # it does not know whether two has seen it
        one.commit(made(3))
    two.settle(made(2))
    assert found.newest() == made(2), "a commit under a former claim is ignored"
    late = f"{DATA}/0000000001-0000000000-{two.label}-0a0b0c0d.parquet"
    found.store.write(late, b"of a task of two")
    with pytest.raises(HistoryError):
        one.check()
    one.sweep()
    assert found.store.size(late) == 16, "files of other jobs are not touched"
    two.commit(made(4))
    for behind in range(5, 12):
        two.commit(made(behind))
    two.sweep()
    assert found.store.size(late) is None
    assert found.newest() == made(11)
    assert len(found.store.files(MANIFESTS)) == manifests.MANIFESTS_KEPT + 1
    assert found.claim().manifest == made(11)


def test_a_job_overtaken_before_the_first_manifest_commits_nothing(
    tmp_path: Path, name: str
) -> None:
    """The first job ever is overtaken before its first manifest: what it commits later, whose files
    are swept, does not become the newest."""
    found = OffloadHistory(str(tmp_path), name)
    empty = Manifest("c", "/n", name, "life", DLSN(1, 0, 0), DLSN(1, 0, 0))
    one, two = found.claim(), found.claim()
    assert two.manifest is None
    two.settle(empty)
    with pytest.raises(HistoryError):
        one.commit(manifests.with_files(empty, [], [], DLSN(7, 0, 0), None, 7))
    assert found.newest() == empty


@pytest.mark.parametrize("damage", [b"", b"{", b'{"v": 1}', b"[]", b'{"v": 2}'])
def test_damaged_manifests_are_refused(tmp_path: Path, name: str, damage: bytes) -> None:
    found = OffloadHistory(str(tmp_path), name)
    found.claim()
    found.store.write(f"{MANIFESTS}/00000001-0123456789ab-00000001.json", damage)
    kind = LaterHistoryError if b"2" in damage else HistoryDamagedError
    with pytest.raises(kind, match="00000001-0123456789ab"):
        found.newest()


def test_another_file_system_can_be_used(
    cluster: LocalCluster, client: blocking.Client, streams: Namespace, name: str,
) -> None:  # fmt: skip
    """A file system in memory (pyarrow), without renames and real directories."""
    from pyarrow import fs

    append(streams, name, numbered(0, 100))
    store = ArchiveDirectory("bucket", fs._MockFileSystem())
    found = OffloadHistory(store, name)
    claim = found.claim()
    [segment] = streams.segments(name)
    from quire.spark.jobs.archive import parquet_files

    digest = Digest(name)
    piece = {"stream": name, "label": claim.label, "txid_is_time": True, "compression": "zstd"}
    part = parquet_files.SegmentPart(segment, 0, segment.last_entry_id)
    batches = parquet_files._batches(client, b"", piece, [part], parquet_files.COLUMNS)
    parquet_files._write(found, "x.parquet", batches, digest, piece)
    path = f"{DATA}/x.parquet"
    file = digest.as_file("x.parquet", found.store.size(path) or 0, found.store.crc(path))
    verify_file(found, file)
    empty = Manifest("c", "/n", name, "life", DLSN(1, 0, 0), DLSN(1, 0, 0))
    claim.commit(manifests.with_files(empty, [file], [], DLSN(2, 0, 0), 100, segment.ledger_id))
    found.check_files(claim.manifest or empty)
    assert found.newest() == claim.manifest
    claim.sweep()


# -- wrong use --------------------------------------------------------------------------------


def test_another_stream_of_the_same_name_is_refused(
    streams: Namespace, name: str, run: Run
) -> None:
    append(streams, name, numbered(0, 100))
    run()
    streams.delete_stream(name)
    append(streams, name, numbered(500, 900), segments=3)
    with pytest.raises(
        UsageError, match=r"was deleted or renamed; another stream has its name now"
    ):
        run(truncate=True)
    assert len(facts(streams, name)) == 400


def test_a_stream_recreated_during_an_offload_is_not_truncated(
    streams: Namespace, name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recreated stream must not be truncated by the old one's state."""
    append(streams, name, numbered(0, 300), segments=3)
    commit, calls = OffloadClaim.commit, []

    def made_anew(self: OffloadClaim, manifest: Manifest) -> None:
        commit(self, manifest)
        calls.append(1)
        if len(calls) == 2:
            streams.delete_stream(name)
            append(streams, name, numbered(500, 900), segments=4)

    monkeypatch.setattr(OffloadClaim, "commit", made_anew)
    with pytest.raises(NoSuchStreamError, match="another stream has its name"):
        run(truncate=True)
    assert len(facts(streams, name)) == 400


@pytest.mark.parametrize("rows", [99, 101])
def test_a_record_count_that_contradicts_the_metadata_is_an_error(
    streams: Namespace, name: str, target: Path, run: Run, monkeypatch: pytest.MonkeyPatch,
    rows: int,
) -> None:  # fmt: skip
    append(streams, name, numbered(0, 100))
    found = StreamMetadata.segments

    async def lying(self: StreamMetadata, **which: Any) -> list[StreamSegment]:
        listed = await found(self, **which)
        return [dataclasses.replace(segment, record_count=rows) for segment in listed]

    monkeypatch.setattr(StreamMetadata, "segments", lying)
    with pytest.raises(
        StreamDamagedError, match=f"the job read 100 records from it, but its metadata says {rows}"
    ):
        run(truncate=True)
    monkeypatch.undo()
    assert manifest_of(target, name).files == ()
    assert len(facts(streams, name)) == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "orc"}, "format must be one of parquet, delta, iceberg, not 'orc'"),
        ({"compression": "rar"}, "not 'rar'"),
        ({"partition_by": "hour"}, "partition_by must be one of date, not 'hour'"),
        ({"format": "iceberg"}, "needs the name of a table"),
        ({"older_than_s": -1.0}, "negative"),
        ({"file_bytes": 0}, "at least 1"),
    ],
)
def test_invalid_offload_options_are_refused(
    run: Run, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(**options)


def test_invalid_directories_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened, because neither library"):
        ArchiveDirectory("what://is/this")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(HistoryError, match="file"):
        OffloadHistory(str(file), "s").claim()


def test_spark_reads_the_files_without_quire(
    streams: Namespace, name: str, target: Path, run: Run
) -> None:
    """Spark reads the files by themselves, without Quire."""
    append(streams, name, numbered(0, 100))
    run()
    from pyarrow import parquet

    [file] = counted_files(target, name)
    table = parquet.read_table(OffloadHistory(str(target), name).store.path(f"{DATA}/{file}"))
    assert facts_of_rows(table.to_pylist()) == facts(streams, name)
