"""The rows of the comparison: each has a work, a cluster and perhaps a target.

The numbers of entries are for a full run. `--quick` divides them.
"""

from __future__ import annotations

from dataclasses import replace

from harness.model import Comparison, Measure, Row, Target, Work

QUICK_DIVISOR = 10
QUICK_LEDGERS_DIVISOR = 4
QUICK_ROWS = {
    "add-1k", "add-100", "latency-one", "latency-half", "ledgers", "ledgers-10k", "read", "recover",
    "recover-10", "tail", "tail-10k", "stream", "stream-read", "stream-tail",
}  # fmt: skip
SCALE = (3, 5, 7)

_OVER_LEDGERS = "1 KB adds over {ledgers:,} ledgers"

_ADD_1K = Work("add", entries=100_000)
_ADD_100 = Work("add", entries=200_000, size_bytes=100)
_ONE = Work("latency", entries=2_000, outstanding=1)
_HALF = Work("latency", entries=50_000)
_E5 = Work("add", entries=100_000, ensemble=5, write_quorum=2, ack_quorum=2)
_LEDGERS = Work("ledgers", entries=100_000, ledgers=2_000)
_LEDGERS_10K = Work("ledgers", entries=500_000, ledgers=10_000)
_LEDGERS_EACH = replace(_LEDGERS_10K, outstanding=10_000)
_READ = Work("read", entries=100_000)
_TAIL = Work("tail", entries=20_000, appends_per_s=2_000)
_TAIL_HALF = Work("tail", entries=40_000, appends_per_s=20_000)
_TAIL_10K = Work("tail", entries=50_000, appends_per_s=10_000)
_TAIL_100 = Work(
    "tail", entries=3_000, appends_per_s=300, readers=100, clients=1, explicit_lac_ms=1
)
_TAIL_100_CLIENTS = replace(_TAIL_100, clients=0)
_STREAM = Work("stream write", entries=1_000_000, size_bytes=100)
_STREAM_READ = Work("stream read", entries=1_000_000, size_bytes=100)
_STREAM_TAIL = Work("stream tail", entries=500, size_bytes=100)
_STREAMS = Work("stream write", entries=1_000, size_bytes=100, streams=1_000)
_RECOVER = Work("recover", entries=1_000, ledgers=20)
_RECOVER_10 = Work("recover", entries=10, ledgers=100)
_REREPLICATE = Work("rereplicate", entries=1_000, ledgers=20)


def _pair(name: str, work: Work) -> tuple[Measure, Measure]:
    return Measure(f"quire {name}", "quire", work), Measure(f"apache {name}", "apache", work)


def _simple(key: str, title: str, work: Work, *, bookies: int, target: Target | None = None) -> Row:
    compared = Comparison(title, "rate_per_s", f"quire {key}", f"apache {key}", target)
    return Row(key, bookies, _pair(key, work), (compared,))


def _add_1k() -> Row:
    many, apache = _pair("add", _ADD_1K)
    one = Measure("quire add one", "quire", replace(_ADD_1K, mode="one"))
    disk = Measure("disk", "disk", _ADD_1K)
    goal = Target(at_least=3, disk_share=0.8)
    return Row(
        "add-1k",
        3,
        (many, apache, one, disk),
        (
            Comparison("1 KB adds, `append_many`", "rate_per_s", many.name, apache.name, goal),
            Comparison("1 KB adds, `append` one by one", "rate_per_s", one.name, apache.name),
            Comparison(
                "resident memory of the largest bookie, 1 KB adds",
                "rss_mb",
                many.name,
                apache.name,
                Target(below=300),
            ),
        ),
    )


def _add_100() -> Row:
    many, apache = _pair("add", _ADD_100)
    one = Measure("quire add one", "quire", replace(_ADD_100, mode="one"))
    return Row(
        "add-100",
        3,
        (many, apache, one),
        (
            Comparison(
                "100 B adds, `append_many`",
                "rate_per_s",
                many.name,
                apache.name,
                Target(at_least=2.5),
            ),
            Comparison("100 B adds, `append` one by one", "rate_per_s", one.name, apache.name),
        ),
    )


def _latency_one() -> Row:
    ours, theirs = _pair("one", _ONE)
    title = "1 KB adds, one outstanding"
    return Row(
        "latency-one",
        3,
        (ours, theirs),
        (
            Comparison(f"{title}, p50", "p50_ms", ours.name, theirs.name, Target(at_most=0.25)),
            Comparison(f"{title}, p99", "p99_ms", ours.name, theirs.name),
        ),
    )


def _latency_half() -> Row:
    ours, theirs = _pair("half", _HALF)
    title = "1 KB adds at half load"
    return Row(
        "latency-half",
        3,
        (ours, theirs),
        (
            Comparison(f"{title}, p99", "p99_ms", ours.name, theirs.name, Target(below=5)),
            Comparison(f"{title}, p50", "p50_ms", ours.name, theirs.name),
            Comparison(f"{title}, the rate itself", "rate_per_s", ours.name, theirs.name),
        ),
        half_load=True,
    )


def _read() -> Row:
    ours = Measure("quire read", "quire", _READ)
    v3 = Measure("apache v3", "apache", _READ, "v3")
    batch = Measure("apache batch", "apache", _READ, "batch")
    title = "1 KB sequential read"
    return Row(
        "read",
        3,
        (ours, v3, batch),
        (
            Comparison(f"{title}; Apache v3", "rate_per_s", ours.name, v3.name, Target(at_least=4)),
            Comparison(
                f"{title}; Apache batch read",
                "rate_per_s",
                ours.name,
                batch.name,
                Target(at_least=1.5),
            ),
        ),
    )


def _tail(
    key: str, work: Work, p99: Target | None = None, *, acked: bool = False, apache: bool = True
) -> Row:
    """Return a row about tailing.

    With `acked`, the target is the time from the acknowledgement on, which Apache's benchmark does
    not print.
    """
    ours = Measure(f"quire {key}", "quire", work)
    theirs = Measure(f"apache {key}", "apache", work, "v3")  # Only v3 has long polls.
    whom = "a tailing reader" if work.readers == 1 else "{readers} tailing readers of one client"
    if work.readers > 1 and not work.clients:
        whom = "{readers} tailing readers, each with a client, in one process"
    title = f"1 KB, {work.appends_per_s:,}/s, from append to {whom}"
    since = title.replace("append", "acknowledgement")
    against = theirs.name if apache else None
    compared = [
        Comparison(f"{title}, p99", "p99_ms", ours.name, against, p99),
        Comparison(f"{title}, p50", "p50_ms", ours.name, against),
    ]
    if acked:
        compared += [
            Comparison(f"{since}, p99", "acked_p99_ms", ours.name, None, Target(below=10)),
            Comparison(f"{since}, p50", "acked_p50_ms", ours.name, None, Target(below=2)),
        ]
    return Row(key, 3, (ours, theirs) if apache else (ours,), tuple(compared))


def _streams() -> tuple[Row, ...]:
    write, java_write = _pair("stream", _STREAM)
    as_it_comes = replace(java_write, name="apache stream, defaults", settings=("buf=1024",))
    read, java_read = _pair("stream-read", _STREAM_READ)
    tail, java_tail = _pair("stream-tail", _STREAM_TAIL)
    many = Measure("quire streams", "quire", _STREAMS)
    goal = Target(at_least=4, floor=400_000)
    lone = "a lone record of a stream, from append to a reader that follows"
    return (
        Row(
            "stream", 3, (write, as_it_comes, java_write),
            (
                Comparison("100 B records to one stream; DistributedLog with its own size of "
                           "entries, 1 KB", "rate_per_s", write.name, as_it_comes.name, goal),
                Comparison("the same; DistributedLog with entries of 64 KB, as Quire has them",
                           "rate_per_s", write.name, java_write.name),
            ),
        ),
        Row(
            "stream-read", 3, (read, java_read),
            (Comparison("100 B records of one stream, read", "rate_per_s", read.name,
                        java_read.name),),
        ),
        Row(
            "stream-tail", 3, (tail, java_tail),
            (
                Comparison(f"{lone}, p50", "p50_ms", tail.name, java_tail.name, Target(below=3)),
                Comparison(f"{lone}, p99", "p99_ms", tail.name, java_tail.name),
            ),
        ),
        Row(
            "streams", 3, (many,),
            (
                Comparison("100 B records to {streams:,} streams at once", "rate_per_s",
                           many.name, None),
                Comparison("resident memory of the largest bookie then", "rss_mb",
                           many.name, None),
            ),
        ),
    )  # fmt: skip


def _recover(
    key: str, title: str, work: Work = _RECOVER, at_most: float = 0.2, *, zookeeper: bool = False
) -> Row:
    ours, theirs = _pair(key, work)
    return Row(
        key,
        3,
        (ours, theirs),
        (Comparison(title, "p50_ms", ours.name, theirs.name, Target(at_most=at_most)),),
        zookeeper=zookeeper,
    )


def _rereplicate() -> Row:
    """Return a row with one more bookie than an ensemble has, which replaces the removed one."""
    ours, theirs = _pair("rereplicate", _REREPLICATE)
    title = "one bookie of {ledgers} ledgers taken out, 1 KB entries, payload copied"
    compared = Comparison(title, "mb_per_s", ours.name, theirs.name, Target(at_least=3))
    return Row("rereplicate", 4, (ours, theirs), (compared,))


def all_rows() -> tuple[Row, ...]:
    recovery = "open a ledger with {entries:,} entries in flight, p50"
    return (
        _add_1k(),
        _add_100(),
        _latency_one(),
        _latency_half(),
        _simple("ledgers", _OVER_LEDGERS, _LEDGERS, bookies=3),
        _simple("ledgers-10k", _OVER_LEDGERS, _LEDGERS_10K, bookies=3, target=Target(at_least=3)),
        _simple(
            "ledgers-each",
            f"{_OVER_LEDGERS}, one under way in each",
            _LEDGERS_EACH,
            bookies=3,
            target=Target(at_least=3),
        ),
        _read(),
        _tail("tail", _TAIL),
        _tail("tail-half", _TAIL_HALF, Target(below=5)),
        _tail("tail-10k", _TAIL_10K, acked=True),
        _tail("tail-100", _TAIL_100, acked=True, apache=False),
        _tail("tail-100-clients", _TAIL_100_CLIENTS, apache=False),
        _recover("recover", recovery),
        _recover("recover-10", recovery, _RECOVER_10, 0.333),
        _recover("recover-zk", f"{recovery}; Quire on ZooKeeper too", zookeeper=True),
        *_streams(),
        _rereplicate(),
        _simple("e5w2a2", "1 KB adds, E=5 Wq=2 Aq=2", _E5, bookies=5),
        *(
            _simple(
                f"scale-{n}",
                f"1 KB adds, {n} bookies (E={n} Wq=3 Aq=2)",
                replace(_ADD_1K, ensemble=n),
                bookies=n,
            )
            for n in SCALE
        ),
    )


def quick(row: Row) -> Row:
    def smaller(measure: Measure) -> Measure:
        work = measure.work
        if work.verb == "recover":
            work = replace(work, ledgers=work.ledgers // QUICK_LEDGERS_DIVISOR)
        else:
            work = replace(
                work,
                entries=max(500, work.entries // QUICK_DIVISOR),
                ledgers=max(1, work.ledgers // QUICK_LEDGERS_DIVISOR),
            )
        return replace(measure, work=work)

    return replace(row, measures=tuple(smaller(m) for m in row.measures))


def choose(keys: list[str], *, is_quick: bool) -> list[Row]:
    """Return the rows with these keys, grouped by the cluster that they need.

    Without keys, return all rows. A quick run without keys has only rows that share one pair of
    clusters.
    """
    chosen = [row for row in all_rows() if row.key in keys]
    if not keys:
        chosen = [row for row in all_rows() if not is_quick or row.key in QUICK_ROWS]
    chosen = [quick(row) for row in chosen] if is_quick else chosen
    return sorted(chosen, key=lambda row: (row.bookies, row.zookeeper))
