"""The job `audit`: every replica of every entry is read from its bookie, and compared.

A first pass reads. Each of its tasks reads one bookie, and answers with a checksum for each block
of entries. Blocks whose replicas have different checksums are read again from all their bookies,
and compared entry by entry. Finally, the findings are checked against the metadata once more,
because what was deleted or moved during the audit is not a finding.

`quire.replication.audit.pieces` defines the pieces, and `quire.core.replicas` defines the kinds of
findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from quire._runtime.tasks import each
from quire.blocking.background import call
from quire.client import Client
from quire.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchStreamError,
    UsageError,
)
from quire.replication import Audit, Finding
from quire.replication.audit import pieces as audit_pieces
from quire.spark.jobs.repair import RepairResult, repair_findings
from quire.spark.jobs.tasks import ClusterOptions, Piece, ProgressCallback, run_pieces, silent
from quire.streams import StreamSegment
from quire.streams.namespace.namespace import open_namespace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE = "/streams"
DEFAULT_SLOTS = 4
"""The assumed number of concurrent tasks with Spark Connect, which does not report it."""
SCHEMA = "ledger bigint, first bigint, last bigint, bookie string, kind string, detail string"

Work = Callable[[Client, Piece, bytes], Coroutine[Any, Any, Piece]]


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit."""

    ledgers: int
    """The number of ledgers that were audited."""
    entries: int
    """The number of replicas of entries that were read and are correct."""
    bytes: int
    """The payload bytes of the replicas that were read and are correct."""
    findings: tuple[Finding, ...]
    """The findings by ledger, bookie and entry, as they were before a repair."""
    repair: RepairResult | None = None
    """The result of the repair, if there was one."""
    unreadable: tuple[str, ...] = ()
    """The ledgers and streams whose metadata could not be read, with the reasons.

    They were not audited. All others were.
    """

    @property
    def clean(self) -> bool:
        """Whether every expected replica exists and is correct."""
        return not self.findings and not self.unreadable

    @property
    def kinds(self) -> dict[str, int]:
        """The number of findings of each kind."""
        return dict(sorted(Counter(one.kind.value for one in self.findings).items()))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the findings as a DataFrame: ledger, first, last, bookie, kind, detail.

        A row applies to everything that the bookie should hold of the entries from `first` to
        `last`.

        Args:
            spark: The session that creates the DataFrame.
        """
        rows = [
            (one.ledger, one.first, one.last, one.bookie, one.kind.value, one.detail)
            for one in self.findings
        ]
        return spark.createDataFrame(rows, SCHEMA)

    def as_json(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        return {
            "ledgers": self.ledgers,
            "entries": self.entries,
            "bytes": self.bytes,
            "clean": self.clean,
            "kinds": self.kinds,
            "findings": [asdict(one) for one in self.findings],
            "unreadable": list(self.unreadable),
            "repair": None if self.repair is None else self.repair.as_json(),
        }


def audit(
    spark: SparkSession,
    cluster: ClusterOptions,
    *,
    ledgers: Iterable[int] | None = None,
    streams: str | None = None,
    namespace: str = NAMESPACE,
    bytes_per_second_per_bookie: float | None = None,
    repair: bool = False,
    progress: ProgressCallback = silent,
) -> AuditResult:
    """Read every replica of some or all ledgers, and compare the replicas.

    Open ledgers are read up to what is acknowledged, and stay open. A bookie that does not answer
    is a finding, not an error. Without `repair` nothing is changed. If the call is interrupted, it
    leaves nothing behind, but a repair may be incomplete.

    Args:
        spark: The session that runs the tasks.
        cluster: The cluster.
        ledgers: The ids of the ledgers to audit. By default all ledgers of the cluster are audited.
        streams: A pattern. The ledgers of the streams whose names match it are audited.
        namespace: The namespace of these streams.
        bytes_per_second_per_bookie: A limit on what is read from a bookie, in bytes per second.
            With `repair` it also limits what each task writes. The default is no limit.
        repair: Whether to restore damaged and missing replicas from correct ones (see
            `repair_findings`).
        progress: A function that receives the progress.

    Returns:
        What was read and found.

    Raises:
        UsageError: An argument is not valid.
        NoSuchLedgerError: One of `ledgers` does not exist.
        NoSuchNamespaceError: The namespace does not exist, and `streams` is given.
        NoSuchStreamError: No stream matches `streams`.
        JobError: There are more than 1,000,000 findings.
        MetadataUnavailableError: The metadata store does not answer the driver.
        Exception: An error of Spark, which contains the error of a task, for example because the
            metadata store does not answer the task.
    """
    if ledgers is not None and streams is not None:
        raise UsageError(
            "the arguments ledgers and streams exclude each other: audit one, then the other"
        )
    if bytes_per_second_per_bookie is not None and bytes_per_second_per_bookie <= 0:
        raise UsageError(
            "bytes_per_second_per_bookie must be more than 0, or the audit would wait forever, but "
            f"it is {bytes_per_second_per_bookie:g}"
        )
    rate = bytes_per_second_per_bookie
    wanted, unread_streams = _wanted(cluster, ledgers, streams, namespace)
    record = Audit()
    unread: dict[int, str] = {}
    found = _read_all(spark, cluster, record, wanted, rate, progress, unread)
    missing = set(wanted) - record.ledgers.keys() - unread.keys()
    if ledgers is not None and missing:
        raise NoSuchLedgerError(
            f"ledger {min(missing)} does not exist: it was never created, or it was deleted. "
            "Nothing was repaired",
            remedy="Correct the list of ledgers",
        )
    unreadable = [*unread_streams, *(f"ledger {one}: {why}" for one, why in sorted(unread.items()))]
    result = AuditResult(
        len(record.ledgers), record.entries, record.bytes, tuple(found),
        unreadable=tuple(unreadable),
    )  # fmt: skip
    if not repair or not result.findings:
        return result
    repaired = repair_findings(spark, cluster, found, bytes_per_second=rate, progress=progress)
    return replace(result, repair=repaired)


def _wanted(
    cluster: ClusterOptions, ledgers: Iterable[int] | None, streams: str | None, namespace: str
) -> tuple[list[int], list[str]]:
    """Return the ledgers to audit, and the streams that could not be read."""
    if ledgers is not None:
        return sorted(set(ledgers)), []
    with cluster.client() as client:
        if streams is None:
            return client.list_ledgers(), []
        return call(stream_ledgers(client.aio, namespace, streams, cluster.password))


def _read_all(
    spark: SparkSession,
    cluster: ClusterOptions,
    record: Audit,
    wanted: Sequence[int],
    rate: float | None,
    progress: ProgressCallback,
    unread: dict[int, str],
) -> list[Finding]:
    """Audit the wanted ledgers, and return the findings.

    `unread` receives the ledgers that could not be read, with the reasons.
    """

    def run(
        pieces: Sequence[Piece], do: Work, what: str, told: ProgressCallback = progress
    ) -> list[Piece]:
        if not pieces:
            return []
        answers = run_pieces(spark, pieces, _task(cluster, do), what=what, progress=told)
        for answer in answers:
            unread.update(answer.get("unreadable", ()))
        return answers

    for answer in run(record.looking(wanted), audit_pieces.look, "looking at ledgers"):
        record.saw(answer)
    with cluster.client() as client:
        call(record.probe(client.aio))
    turns = record.reading(rate)
    total, before = sum(map(len, turns)), 0
    for turn in turns:
        told = _Turn(progress, before, total)
        for answer in run(turn, audit_pieces.read, "reading replicas", told):
            record.has_read(answer)
        before += len(turn)
    share = None if rate is None else rate / slots(spark)
    for answer in run(record.comparing(share), audit_pieces.compare_blocks, "comparing replicas"):
        record.has_compared(answer)
    with cluster.client() as client:
        return call(record.findings(client.aio))


def _task(cluster: ClusterOptions, do: Work) -> Callable[[Piece], Piece]:
    def task(piece: Piece) -> Piece:
        with cluster.client() as client:
            return call(do(client.aio, piece, cluster.password))

    return task


class _Turn:
    """A progress callback for one round of tasks, which reports it as a part of all rounds."""

    def __init__(self, progress: ProgressCallback, before: int, total: int) -> None:
        self._progress, self._before, self._total = progress, before, total

    def __call__(self, what: str, done: int, total: int | None) -> None:
        self._progress(what, self._before + done, self._total)


def slots(spark: SparkSession) -> int:
    """Return the number of tasks that run at once, or `DEFAULT_SLOTS` with Spark Connect."""
    if not hasattr(spark, "_jsc"):  # Spark Connect
        return DEFAULT_SLOTS
    return max(int(spark.sparkContext.defaultParallelism), 1)


async def stream_ledgers(
    client: Client, namespace: str, pattern: str, password: bytes
) -> tuple[list[int], list[str]]:
    """Return the ledgers of the matching streams, and the streams that could not be read.

    Each text about an unreadable stream has its name and the reason. Raises NoSuchNamespaceError,
    and NoSuchStreamError if no stream of `namespace` matches.
    """
    unread: list[str] = []
    async with await open_namespace(client, namespace, password=password) as streams:
        names = [name for name in await streams.streams() if fnmatchcase(name, pattern)]
        if not names:
            raise NoSuchStreamError(
                f"namespace {namespace} has no stream that matches {pattern!r}",
                remedy="`quire stream list` shows the streams",
            )

        async def of(name: str) -> list[StreamSegment]:
            try:
                return await streams.segments(name)
            except MetadataUnavailableError:
                raise
            except NoSuchStreamError:
                return []  # the stream was deleted since it was listed
            except MetadataError as error:
                unread.append(f"stream {name}: {error}")
                return []

        segments = await each(names, of)
    return sorted({segment.ledger_id for one in segments for segment in one}), sorted(unread)
