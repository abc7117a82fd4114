"""Every replica of every entry, read from the bookie that should have it, and compared.

A first pass reads: each task one bookie; its answer is a sum for each block of entries. Blocks
whose replicas have different sums are read again from all their bookies, and compared entry by
entry. Findings are checked against the metadata once more in the end: what was deleted, or moved
away, while the audit ran is not one.

The pieces are those of `quire.replication.audit.pieces`; what counts as wrong, and as what, is in
`quire.core.replicas`.
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
"""Tasks at once, where Spark does not say."""
SCHEMA = "ledger bigint, first bigint, last bigint, bookie string, kind string, detail string"

Work = Callable[[Client, Piece, bytes], Coroutine[Any, Any, Piece]]


@dataclass(frozen=True, slots=True)
class AuditResult:
    ledgers: int
    """That were looked at."""
    entries: int
    """Replicas of entries that were read and are right."""
    bytes: int
    """Their payload."""
    findings: tuple[Finding, ...]
    """By ledger, bookie and entry. After a repair: what was found before it."""
    repair: RepairResult | None = None
    unreadable: tuple[str, ...] = ()
    """The ledgers and streams whose metadata could not be read, with the reasons. They were not
    audited; all others were."""

    @property
    def clean(self) -> bool:
        """Whether every expected replica exists and is correct."""
        return not self.findings and not self.unreadable

    @property
    def kinds(self) -> dict[str, int]:
        """How many findings there are of each kind."""
        return dict(sorted(Counter(one.kind.value for one in self.findings).items()))

    def frame(self, spark: SparkSession) -> DataFrame:
        """The findings: ledger, first, last, bookie, kind, detail. Of what the bookie should hold
        of entries first..last, all is like this."""
        rows = [
            (one.ledger, one.first, one.last, one.bookie, one.kind.value, one.detail)
            for one in self.findings
        ]
        return spark.createDataFrame(rows, SCHEMA)

    def as_json(self) -> dict[str, Any]:
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
    """Read every replica of the ledgers with these ids, of the streams of `namespace` whose names
    match the pattern `streams`, or of all ledgers of the cluster. Open ledgers are read up to what
    is acknowledged; they stay open.

    `bytes_per_second_per_bookie` bounds what is read of a bookie (and, with `repair`, what is
    written by each task). With `repair` what was found is written back from replicas that are right
    (see `repair_findings`). Without it nothing is changed.

    Raises UsageError, NoSuchLedgerError for an id that is given and is not there, JobError, and
    MetadataUnavailableError. Interrupted it leaves nothing behind; a repair may be done in part.
    """
    if ledgers is not None and streams is not None:
        raise UsageError("ledgers and streams exclude each other: audit one, then the other")
    if bytes_per_second_per_bookie is not None and bytes_per_second_per_bookie <= 0:
        raise UsageError("a bound of 0 bytes per second would let the audit wait for ever")
    rate = bytes_per_second_per_bookie
    wanted, unread_streams = _wanted(cluster, ledgers, streams, namespace)
    record = Audit()
    unread: dict[int, str] = {}
    found = _read_all(spark, cluster, record, wanted, rate, progress, unread)
    missing = set(wanted) - record.ledgers.keys() - unread.keys()
    if ledgers is not None and missing:
        raise NoSuchLedgerError(f"there is no ledger {min(missing)}")
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
    """The ledgers, and the streams that could not be read."""
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
    """Audit the wanted ledgers, and return the findings. `unread` receives the ledgers that could
    not be read, with the reasons."""

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
    """The progress of one turn, as part of the whole."""

    def __init__(self, progress: ProgressCallback, before: int, total: int) -> None:
        self._progress, self._before, self._total = progress, before, total

    def __call__(self, what: str, done: int, total: int | None) -> None:
        self._progress(what, self._before + done, self._total)


def slots(spark: SparkSession) -> int:
    """How many tasks run at once."""
    if not hasattr(spark, "_jsc"):  # Spark Connect
        return DEFAULT_SLOTS
    return max(int(spark.sparkContext.defaultParallelism), 1)


async def stream_ledgers(
    client: Client, namespace: str, pattern: str, password: bytes
) -> tuple[list[int], list[str]]:
    """Return the ledgers of the matching streams of `namespace`, and the streams that could not be
    read, with the reasons. Raises NoSuchStreamError if none matches."""
    unread: list[str] = []
    async with await open_namespace(client, namespace, password=password) as streams:
        names = [name for name in await streams.streams() if fnmatchcase(name, pattern)]
        if not names:
            raise NoSuchStreamError(f"no stream of {namespace} matches {pattern!r}")

        async def of(name: str) -> list[StreamSegment]:
            try:
                return await streams.segments(name)
            except MetadataUnavailableError:
                raise
            except NoSuchStreamError:
                return []  # deleted since it was listed
            except MetadataError as error:
                unread.append(f"stream {name}: {error}")
                return []

        segments = await each(names, of)
    return sorted({segment.ledger_id for one in segments for segment in one}), sorted(unread)
