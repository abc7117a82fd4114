"""A client reports about itself with spans of OpenTelemetry and events in the log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from quire.client.client import pool_of
from quire.client.cluster.health import Misbehaviour
from quire.client.observability.logs import JsonFormatter, log_event
from quire.client.observability.tracing import Tracing
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.codec.wire.v2 import Code
from quire.config import ClientConfig
from quire.errors import LedgerFencedError, NoSuchLedgerError, RecoveryError
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    FakeBookie,
    FakeCluster,
    created,
    payload,
    simulated,
)
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
SOURCES = [
    path.read_text(encoding="utf-8")
    for room in ("client", "streams")
    for path in sorted((ROOT / "src/quire" / room).rglob("*.py"))
]


class Traces:
    """A tracer that keeps its spans."""

    def __init__(self, **how: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False, **how)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider = provider
        self.tracer = provider.get_tracer("test")

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.all(name)
        return span

    def names(self) -> set[str]:
        return {span.name for span in self.exporter.get_finished_spans()}


def values(span: ReadableSpan, *names: str) -> tuple[Any, ...]:
    attributes = span.attributes or {}
    return tuple(attributes.get(f"quire.{name}") for name in names)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def writer_of(client: Any, ensemble_size: int = 3) -> Any:
    return await created(client, (ensemble_size, 3, 2))


def spare(cluster: FakeCluster, used: Sequence[str]) -> FakeBookie:
    [name] = cluster.bookies.keys() - set(used)
    return cluster[name]


# -- spans ------------------------------------------------------------------------------------


def test_a_ledger_from_its_creation_to_its_end_has_spans_of_calls_and_batches() -> None:
    traces = Traces()

    async def main() -> tuple[str, ...]:
        cluster = await FakeCluster.made(3)
        async with cluster.client(tracer=traces.tracer) as client:
            async with await writer_of(client) as writer:
                with traces.tracer.start_as_current_span("request"):
                    for n in range(5):
                        writer.submit(payload(n))
                    await writer.flush()
                await writer.append_many([payload(n) for n in range(5, 1_000)])
                ensemble: tuple[str, ...] = writer.metadata.last_segment.ensemble
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert [e.payload async for e in reader.read()] == [payload(n) for n in range(1_000)]
            await client.delete_ledger(LEDGER)
            return ensemble

    ensemble = simulated(main)
    created = traces.one("quire.create_ledger")
    assert values(created, "ledger_id", "ensemble") == (LEDGER, ensemble)
    # Five appends of one event-loop iteration are one span, in the trace of the first caller.
    turn, many = traces.all("quire.add")
    assert values(turn, "ledger_id", "first_entry", "last_entry") == (LEDGER, 0, 4)
    assert values(turn, "size_bytes") == (sum(len(payload(n)) for n in range(5)),)
    assert values(many, "first_entry", "last_entry") == (5, 999)
    assert values(traces.one("quire.close_ledger"), "ledger_id", "last_entry") == (LEDGER, 999)
    assert values(traces.one("quire.open_ledger"), "recover", "last_entry") == (False, 999)
    assert values(traces.one("quire.delete_ledger"), "ledger_id") == (LEDGER,)
    windows = traces.all("quire.read")
    assert values(windows[0], "ledger_id", "first_entry") == (LEDGER, 0)
    assert [values(w, "last_entry") for w in windows[-1:]] == [(999,)]
    requests = traces.all("quire.read_batch")
    assert {parent_of(one) for one in requests} == {id_of(one) for one in windows}
    assert {values(one, "bookie")[0] for one in requests} <= set(ensemble)
    assert len(traces.exporter.get_finished_spans()) < 20  # of a thousand entries
    assert {s.status.status_code for s in traces.exporter.get_finished_spans()} == {
        StatusCode.UNSET
    }


def test_a_batch_belongs_to_the_span_of_its_first_append() -> None:
    traces = Traces()

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client(tracer=traces.tracer) as client:
            writer = await writer_of(client)
            with traces.tracer.start_as_current_span("request"):
                await writer.append(payload(0))
            writer.abandon()

    simulated(main)
    assert parent_of(traces.one("quire.add")) == id_of(traces.one("request"))


def test_a_striped_read_has_one_span_per_bookie() -> None:
    traces = Traces()

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 2, 2), range(9), state=LedgerState.CLOSED)
        async with cluster.client(tracer=traces.tracer) as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert len([entry async for entry in reader.read()]) == 9

    simulated(main)
    found = [values(s, "bookie", "first_entry", "last_entry")
             for s in traces.all("quire.read_stripe")]  # fmt: skip
    assert sorted(found) == [("b0", 0, 6), ("b1", 1, 7), ("b2", 2, 8)]
    window = id_of(traces.one("quire.read"))
    assert {parent_of(span) for span in traces.all("quire.read_stripe")} == {window}


def test_an_ensemble_change_is_a_trace_of_its_own_linked_to_the_creation() -> None:
    traces = Traces()

    async def main() -> tuple[str, str]:
        cluster = await FakeCluster.made(4)
        async with cluster.client(tracer=traces.tracer) as client:
            with traces.tracer.start_as_current_span("request"):
                async with await writer_of(client) as writer:
                    await writer.append(payload(0))
                    before = writer.metadata.last_segment.ensemble
                    cluster[before[1]].add_error = Code.IO_ERROR
                    await writer.append(payload(1))
                    await until(lambda: writer.metadata.last_segment.ensemble != before)
                    return before[1], spare(cluster, before).name

    failed, added = simulated(main)
    change = traces.one("quire.ensemble_change")
    assert change.parent is None
    assert [link.context.span_id for link in change.links] == [
        id_of(traces.one("quire.create_ledger"))
    ]
    assert values(change, "ledger_id", "failed", "added", "outcome") == (
        LEDGER, (failed,), (added,), "replaced",
    )  # fmt: skip


def test_unacknowledged_batches_end_as_errors_when_the_writer_is_fenced() -> None:
    traces = Traces()

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client(tracer=traces.tracer) as client:
            writer = await writer_of(client)
            await writer.append(payload(0))
            for bookie in cluster.bookies.values():
                bookie.add_error = Code.FENCED
            with pytest.raises(LedgerFencedError):
                await writer.append(payload(1))

    simulated(main)
    good, bad = traces.all("quire.add")
    assert good.status.status_code is StatusCode.UNSET
    assert values(bad, "first_entry") == (1,)
    assert bad.status.status_code is StatusCode.ERROR
    assert (bad.status.description or "").startswith("LedgerFencedError: ")


def test_a_recovery_has_a_span_for_each_phase() -> None:
    traces = Traces()

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6))
        async with cluster.client(tracer=traces.tracer) as client:
            await client.open_ledger(LEDGER, password=PASSWORD, recover=True)

    simulated(main)
    recover = traces.one("quire.recover")
    assert parent_of(recover) == id_of(traces.one("quire.open_ledger"))
    assert values(recover, "ledger_id", "last_entry") == (LEDGER, 5)
    phases = [traces.one(f"quire.recover.{name}") for name in ("fence", "write_back", "close")]
    assert [parent_of(phase) for phase in phases] == [id_of(recover)] * 3
    fence, write_back, _ = phases
    [lac] = values(fence, "last_entry")
    assert values(write_back, "first_entry", "last_entry") == (lac + 1, 5)
    assert values(recover, "written_back") == (5 - lac,)
    assert 5 - lac > 0
    written = traces.all("quire.add")
    assert {parent_of(span) for span in written} == {id_of(write_back)}


def test_an_error_is_the_status_of_its_span() -> None:
    traces = Traces()

    async def main() -> None:
        cluster = await FakeCluster.made(1)
        async with cluster.client(tracer=traces.tracer) as client:
            with pytest.raises(NoSuchLedgerError):
                await client.open_ledger(99)

    simulated(main)
    span = traces.one("quire.open_ledger")
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_spans_that_are_not_sampled_are_not_kept() -> None:
    traces = Traces(sampler=ALWAYS_OFF)
    spans = Tracing(traces.tracer).of_session(LEDGER)
    assert spans is not None
    spans.sent(0, 9, 100)
    assert not spans._batches
    assert traces.names() == set()


@pytest.mark.parametrize("when", ["on_start", "on_end"])
def test_a_tracer_that_fails_breaks_no_call(when: str) -> None:
    """A failing tracer once ended writers and failed calls that had succeeded."""
    traces, told = Traces(), list[dict[str, Any]]()

    class Broken(SpanProcessor):
        def fail(self, *_: object, **__: object) -> None:
            raise RuntimeError("exporter")

    setattr(Broken, when, Broken.fail)
    traces.provider.add_span_processor(Broken())

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        cluster = await FakeCluster.made(4)
        async with cluster.client(tracer=traces.tracer) as client:
            async with await writer_of(client) as writer:
                await writer.append(payload(0))
                cluster[writer.metadata.last_segment.ensemble[0]].die()
                assert await writer.append_many([payload(n) for n in range(1, 10)]) == 9
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert [e.payload async for e in reader.read()] == [payload(n) for n in range(10)]
            with pytest.raises(NoSuchLedgerError):
                await client.open_ledger(99)
            await client.delete_ledger(LEDGER)

    simulated(main)
    assert {repr(one["exception"]) for one in told} == {"RuntimeError('exporter')"}


def test_a_span_that_takes_no_attributes_breaks_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` raised its error, although the ledger was closed."""
    traces, told = Traces(), list[dict[str, Any]]()

    def fails(*_: object) -> None:
        raise RuntimeError("span")

    monkeypatch.setattr(sdk.Span, "set_attributes", fails)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        cluster = await FakeCluster.made(3)
        async with cluster.client(tracer=traces.tracer) as client:
            writer = await writer_of(client)
            await writer.append(payload(0))
            assert await writer.close() == 0

    simulated(main)
    assert [repr(one["exception"]) for one in told] == ["RuntimeError('span')"]


def test_without_a_tracer_a_session_has_no_spans_and_nothing_is_imported() -> None:
    assert Tracing().of_session(LEDGER) is None
    assert Tracing().span("a") is Tracing().span("b")


async def test_without_the_extra_the_client_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # as if it were not installed
    cluster = await FakeCluster.made(3)
    async with cluster.client() as client:
        async with await writer_of(client) as writer:
            await writer.append(payload(0))
        reader = await client.open_ledger(LEDGER, password=PASSWORD)
        assert (await reader.read_last()).payload == payload(0)


# -- events -----------------------------------------------------------------------------------


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    formatter = JsonFormatter()
    lines = [json.loads(formatter.format(record)) for record in caplog.records]
    return [line for line in lines if "event" in line]


def test_ensemble_changes_and_failures_of_a_writer_are_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> tuple[str, str]:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer = await writer_of(client)
            await writer.append(payload(0))
            before = writer.metadata.last_segment.ensemble
            cluster[before[1]].add_error = Code.IO_ERROR
            await writer.append(payload(1))
            await until(lambda: writer.metadata.last_segment.ensemble != before)
            for bookie in cluster.bookies.values():
                bookie.add_error = Code.FENCED
            with pytest.raises(LedgerFencedError):
                await writer.append(payload(2))
            return before[1], spare(cluster, before).name

    with caplog.at_level(logging.INFO, "quire.client"):
        failed, added = simulated(main)
    changed, over = events(caplog)
    assert changed.items() >= {
        "event": "ensemble_changed", "level": "info", "logger": "quire.client", "ledger": LEDGER,
        "entry": 1, "bookie": [failed], "added": [added], "outcome": "replaced",
    }.items()  # fmt: skip
    assert failed in changed["error"]
    assert over.items() >= {
        "event": "writer_failed", "ledger": LEDGER, "entry": 1, "last_sent": 2,
        "outcome": "unknown",
    }.items()  # fmt: skip


def test_continuing_with_fewer_bookies_and_their_return_are_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = ClientConfig(bookies_wait_s=0.1, add_timeout_s=5.0)

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client(config) as client, await writer_of(client) as writer:
            await writer.append(payload(0))
            cluster["b1"].add_error = Code.IO_ERROR
            await writer.append(payload(1))
            await until(lambda: any(e["event"] == "ensemble_changed" for e in events(caplog)))
            cluster["b1"].add_error = Code.OK
            await until(lambda: any(e["event"] == "bookie_rejoined" for e in events(caplog)))

    with caplog.at_level(logging.INFO, "quire.client"):
        simulated(main)
    first, *_, last = events(caplog)
    assert (first["event"], first["outcome"], first["bookie"]) == (
        "ensemble_changed", "fewer", ["b1"],
    )  # fmt: skip
    assert (last["event"], last["bookie"]) == ("bookie_rejoined", "b1")


def test_a_member_whose_idle_connection_breaks_is_reconnected_and_not_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> tuple[str, bool]:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client, await writer_of(client) as writer:
            await writer.append(payload(0))
            before = (await cluster.stored()).last_segment.ensemble
            lost = cluster[before[1]]
            await until(lambda: 0 in lost.entries and not lost.links[-1].unanswered)
            lost.links.pop().lose()
            await until(lambda: events(caplog))
            await writer.append(payload(1))
            await until(lambda: 1 in lost.entries)
            return lost.name, (await cluster.stored()).last_segment.ensemble == before

    with caplog.at_level(logging.INFO, "quire.client"):
        lost, unchanged = simulated(main)
    [reconnected] = events(caplog)
    assert reconnected.items() >= {
        "event": "bookie_reconnected", "ledger": LEDGER, "entry": 1, "bookie": [lost],
    }.items()  # fmt: skip
    assert unchanged


def test_a_writer_that_is_closed_or_abandoned_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client, await writer_of(client) as writer:
            await writer.append(payload(0))

    with caplog.at_level(logging.INFO, "quire.client"):
        simulated(main)
    assert events(caplog) == []


def test_recoveries_are_events_whether_they_succeed_or_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6))
        async with cluster.client() as client:
            for name in ("b0", "b1"):
                cluster[name].down = True
            with pytest.raises(RecoveryError):
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            for name in ("b0", "b1"):
                cluster[name].down = False
            await client.open_ledger(LEDGER, password=PASSWORD, recover=True)

    with caplog.at_level(logging.INFO, "quire.client"):
        simulated(main)
    failed, recovered = events(caplog)
    assert failed.items() >= {
        "event": "recovery_failed", "ledger": LEDGER, "outcome": "open",
    }.items()  # fmt: skip
    assert recovered.items() >= {
        "event": "ledger_recovered", "ledger": LEDGER, "entry": 5, "outcome": "closed",
    }.items()  # fmt: skip
    assert recovered["written_back"] > 0


def test_a_wrong_answer_of_a_bookie_is_an_event_with_ledger_and_entry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(1)
        async with cluster.client() as client:
            pool_of(client).health.misbehaved("b0", Misbehaviour.BAD_DIGEST, LEDGER, 3)

    simulated(main)
    wrong, avoided = events(caplog)
    assert wrong.items() >= {
        "event": "bookie_misbehaved", "level": "warning", "bookie": "b0", "ledger": LEDGER,
        "entry": 3, "kind": "bad-digest", "count": 1,
    }.items()  # fmt: skip
    assert (avoided["event"], avoided["bookie"]) == ("bookie_quarantined", "b0")
    assert avoided["seconds"] == CONFIG.quarantine_s


def test_the_text_of_an_event_can_be_parsed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "quire.client"):
        log_event(logging.INFO, "it", ledger=3, bookie=["a:1", "b:2"], error='no "x"\ny', took=0.5)
        log_event(logging.INFO, "lines", error="a\nb", empty="")
        log_event(logging.DEBUG, "unheard")
    assert [record.getMessage() for record in caplog.records] == [
        r'it ledger=3 bookie=a:1,b:2 error="no \"x\"\ny" took=0.5',
        r'lines error="a\nb" empty=""',
    ]


def test_any_log_record_is_formatted_as_one_line_of_json() -> None:
    formatter = JsonFormatter()
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        record = logging.LogRecord(
            "theirs", logging.ERROR, __file__, 1, "%s failed", ("it",), sys.exc_info()
        )
    record.created = 0.25
    record.level = "not ours"
    record.what = {1}
    text = formatter.format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["time"], line["level"]) == ("1970-01-01T00:00:00.250Z", "error")
    assert (line["logger"], line["message"]) == ("theirs", "it failed")
    assert line["what"] == "{1}"
    assert "ValueError: first\nsecond" in line["exception"]


# -- the guide --------------------------------------------------------------------------------


def found(pattern: str) -> set[str]:
    return {name for source in SOURCES for name in re.findall(pattern, source)}


def test_the_guide_lists_every_event_with_its_level() -> None:
    text = (ROOT / "docs/guides/programs/client-observability.md").read_text(encoding="utf-8")
    table = text.partition("<!-- events -->")[2].partition("<!-- end -->")[0]
    listed = set(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE))
    told = {
        (event, level.lower())
        for source in SOURCES
        for level, event in re.findall(r'log_event\(\s*logging\.(\w+), "(\w+)"', source)
    }
    assert len(told) > 5
    for source in SOURCES:
        told |= {
            (event, level)
            for level, event in re.findall(r'logger\.(\w+)\(.*?"event": "(\w+)"', source, re.DOTALL)
        }
    assert listed == told


def test_the_guide_lists_every_span() -> None:
    text = (ROOT / "docs/guides/programs/client-observability.md").read_text(encoding="utf-8")
    listed = set()
    for row in re.findall(r"^\| (`quire\..*?) \|", text, re.MULTILINE):
        listed |= set(re.findall(r"`quire\.([\w.]+)`", row))
    made = found(r'\bspan\("([a-z_.]+)"') | found(r'_span\("([a-z_.]+)"')
    assert len(made) > 8
    assert listed == made | found(r'"quire\.(add|ensemble_change)"')
