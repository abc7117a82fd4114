"""The trace of a run as lines and as a diagram."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.v2 import Code, Flag
from quire_simulator import (
    WORKLOADS,
    Fault,
    RunFailure,
    RunPlan,
    RunResult,
    TraceStep,
    as_mermaid,
    as_text,
    run_plan,
    simulate,
)
from quire_simulator.report.diagram import PARTICIPANTS_MAX, ROWS_MAX
from quire_simulator.report.steps import StepKind, together
from quire_simulator.report.text import TEXT_LINES_MAX, middle_left_out
from quire_simulator.report.wire import Said, Wiretap, message_of
from tests.support.sim.defects import failing_plan, recovery_closes_at_the_lac
from tests.support.sim.runs import plain_run

PORT = 3181
KEY = master_key(b"")
CODEC = EntryCodec(7, DigestType.CRC32C, b"")
ENTRY = CODEC.pack(5, 3, 100, b"payload")
CLIENT, BOOKIE = ("writer-0", 40_001), ("bookie-0", PORT)

SEEDS = int(os.environ.get("QUIRE_SIM_SEEDS", "5"))
FULL_SEEDS = 20
STORIES = max(1, SEEDS // FULL_SEEDS)
"""The seeds of each workload whose traces are tested."""
TRACED = [
    pytest.param(workload, marks=pytest.mark.long if place % 32 else ())
    for place, workload in enumerate(WORKLOADS)
    if SEEDS >= FULL_SEEDS or place % 2 == 0
]
"""The workloads whose traces are tested.

`make test` tries two, `make test-long` the others of every second, and `make sim` all.
"""
LINE = re.compile(r" *(\d+\.\d{4})  ([\w.-]+) +(\S.*)")


# -- what was said ----------------------------------------------------------------------------

REQUESTS = [
    (frames.add_request(KEY, ENTRY), Said("add", False, 7, 5, 5, 3)),
    (frames.add_request(KEY, ENTRY, Flag.RECOVERY_ADD), Said("recovery add", False, 7, 5, 5, 3)),
    (frames.read_request(7, 4), Said("read", False, 7, 4, 4)),
    (frames.read_request(7, 4, Flag.DO_FENCING, KEY), Said("fence, read", False, 7, 4, 4)),
    (
        frames.read_request(7, -1, Flag.DO_FENCING, KEY),
        Said("fence, read the last entry", False, 7),
    ),
    (frames.batch_read_request(7, 4, 1, 10, 1_000), Said("read on from", False, 7, 4, 4)),
    (
        frames.batch_read_request(7, 4, 1, 10, 1_000, Flag.DO_FENCING, KEY),
        Said("fence, read on from", False, 7, 4, 4),
    ),
    (frames.auth_frame(frames.auth_message("plugin", b"")), Said("auth", False)),
    (v3.add_request(1, KEY, ENTRY, 7, 5), Said("add", False, 7, 5, 5, 3)),
    (
        v3.add_request(1, KEY, ENTRY, 7, 5, recovery=True),
        Said("recovery add", False, 7, 5, 5, 3),
    ),
    (
        v3.add_request(1, KEY, ENTRY, 7, 5, deferred_sync=True),
        Said("deferred add", False, 7, 5, 5, 3),
    ),
    (v3.read_request(1, 7, 4), Said("read", False, 7, 4, 4)),
    (v3.read_request(1, 7, 4, fence_with=KEY), Said("fence, read", False, 7, 4, 4)),
    (v3.long_poll_request(1, 7, 4, 100), Said("wait for a later LAC", False, 7, lac=4)),
    (v3.write_lac_request(1, 7, 4, KEY, b""), Said("write the LAC", False, 7, lac=4)),
    (v3.read_lac_request(1, 7), Said("read the LAC", False, 7)),
    (v3.force_request(1, 7), Said("force", False, 7)),
    (v3.list_entries_request(1, 7), Said("list", False, 7)),
    (v3.bookie_info_request(1, 3), Said("bookie info", False)),
]


def answer_v3(op: v3.Op, code: Code, part: str, **values: object) -> bytes:
    answer = v3.response(op, 1, code)
    inner = getattr(answer, part)
    inner.status = answer.status
    for name, value in values.items():
        setattr(inner, name, value)
    return v3.frame(answer)


ANSWERS = [
    (frames.add_response(0, 7, 5), Said("added", True, 7, 5, 5)),
    (frames.add_response(Code.FENCED, 7, 5), Said("FENCED to add", True, 7, 5, 5)),
    (frames.add_response(999, 7, 5), Said("code 999 to add", True, 7, 5, 5)),
    (frames.read_response(0, 7, 5, ENTRY), Said("entry", True, 7, 5, 5, 3)),
    (frames.read_response(Code.NO_ENTRY, 7, 6), Said("NO_ENTRY to read", True, 7, 6, 6)),
    (
        frames.read_response(Code.NO_LEDGER, 7, -1),
        Said("NO_LEDGER to read the last entry", True, 7),
    ),
    (
        frames.batch_read_response(0, 7, 5, 1, [ENTRY, ENTRY, ENTRY]),
        Said("entries", True, 7, 5, 7),
    ),
    (frames.batch_read_response(Code.NO_ENTRY, 7, 5, 1), Said("NO_ENTRY to read", True, 7, 5, 5)),
    (
        answer_v3(v3.Op.ADD, Code.OK, "addResponse", ledgerId=7, entryId=5),
        Said("added", True, 7, 5, 5),
    ),
    (
        answer_v3(v3.Op.READ, Code.OK, "readResponse", ledgerId=7, entryId=5, body=ENTRY),
        Said("entry", True, 7, 5, 5, 3),
    ),
    (
        answer_v3(v3.Op.READ, Code.OK, "readResponse", ledgerId=7, entryId=-1, maxLAC=4),
        Said("the LAC", True, 7, lac=4),
    ),
    (
        answer_v3(
            v3.Op.READ_LAC, Code.OK, "readLacResponse", ledgerId=7, lacBody=CODEC.pack_lac(9),
            lastEntryBody=ENTRY,
        ),
        Said("the LAC", True, 7, lac=9),
    ),
    (
        answer_v3(v3.Op.FORCE, Code.FENCED, "forceLedgerResponse", ledgerId=7),
        Said("FENCED to force", True, 7),
    ),
    (
        answer_v3(v3.Op.FORCE, Code.OK, "forceLedgerResponse", ledgerId=7),
        Said("force done", True, 7),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("frame", "said"), REQUESTS, ids=lambda value: getattr(value, "verb", ""))
def test_requests_are_decoded_into_words(frame: bytes, said: Said) -> None:
    assert message_of(frame, answer=False) == said


@pytest.mark.parametrize(("frame", "said"), ANSWERS, ids=lambda value: getattr(value, "verb", ""))
def test_answers_are_decoded_into_words(frame: bytes, said: Said) -> None:
    assert message_of(frame, answer=True) == said


@given(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=8), st.data())
def test_any_cut_of_the_bytes_gives_the_same_messages(
    sent: list[tuple[bytes, Said]], data: st.DataObject
) -> None:
    stream = b"".join(frame for frame, _ in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    tap, heard = Wiretap(PORT), []
    for begin, end in pairwise([0, *cuts, len(stream)]):
        heard += tap.heard(CLIENT, BOOKIE, stream[begin:end])
    assert heard == [said for _, said in sent]


@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_random_bytes_raise_no_error(chunks: list[bytes], answer: bool) -> None:
    tap = Wiretap(PORT)
    local, remote = (BOOKIE, CLIENT) if answer else (CLIENT, BOOKIE)
    for chunk in chunks:
        for said in tap.heard(local, remote, chunk):
            assert said.answer is answer


@given(st.sampled_from([*REQUESTS, *ANSWERS]), st.data())
def test_a_damaged_frame_raises_no_error(sent: tuple[bytes, Said], data: st.DataObject) -> None:
    frame = bytearray(sent[0])
    frame[data.draw(st.integers(4, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    assert message_of(bytes(frame), sent[1].answer).answer is sent[1].answer


def test_no_message_is_decoded_after_an_invalid_length() -> None:
    tap = Wiretap(PORT)
    (said,) = tap.heard(CLIENT, BOOKIE, b"\xff\xff\xff\xff....")
    assert said.verb == "bytes that are not a frame"
    assert list(tap.heard(CLIENT, BOOKIE, REQUESTS[0][0])) == []
    # Another connection of the same two is another matter.
    assert len(list(tap.heard(("writer-0", 40_002), BOOKIE, REQUESTS[0][0]))) == 1


# -- steps that are told as one ---------------------------------------------------------------


def add(entry: int, at_s: float, to: str = "bookie-0") -> TraceStep:
    return TraceStep(at_s, StepKind.REQUEST, "writer-0", "add", to, 1, entry, entry, lac=entry - 1)


def test_similar_neighbouring_steps_are_merged() -> None:
    (told,) = together([add(0, 1.0), add(1, 1.1), add(2, 1.2)], room=100)
    assert (told.first, told.last, told.count, told.lac) == (0, 2, 3, 1)
    assert told.what() == "add 0..2 of ledger 1 (LAC 1)"
    assert together([add(0, 1.0), add(1, 9.0)], room=100) == [add(0, 1.0), add(1, 9.0)]
    (striped,) = together([add(0, 1.0), add(2, 1.1), add(3, 1.2)], room=100)
    assert striped.what() == "add 0..3 (3 of them) of ledger 1 (LAC 2)"
    (twice,) = together([add(5, 1.0), add(5, 1.1)], room=100)
    assert twice.what() == "add 5 of ledger 1 (LAC 4) x2"


def test_steps_are_reordered_only_without_room() -> None:
    steps = [add(k, 1 + k / 100, to) for k in range(10) for to in ("bookie-0", "bookie-1")]
    assert together(steps, room=20) == steps
    assert [m.what() for m in together(steps, room=19)] == ["add 0..9 of ledger 1 (LAC 8)"] * 2
    crash = TraceStep(1.055, StepKind.FAULT, "nemesis", "crash bookie-0")
    split = together([*steps[:12], crash, *steps[12:]], room=5)
    assert [(m.first, m.last) for m in split] == [(0, 5), (0, 5), (-1, -1), (6, 9), (6, 9)]


def test_repeated_start_failures_are_merged() -> None:
    def tries(at_s: float, error: str) -> list[TraceStep]:
        return [
            TraceStep(at_s, StepKind.BOOKIE, "bookie-0", "kill"),
            TraceStep(at_s, StepKind.BOOKIE, "bookie-0", "start failed", note=error),
        ]

    steps = [step for k in range(10) for step in tries(k, "full" if k < 5 else "damaged")]
    told = together(steps, room=100)
    assert [step.note for step in told] == ["", "full", "", "damaged"]


# -- whole runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", TRACED)
def test_tracing_does_not_change_a_run(workload: str) -> None:
    for seed in range(STORIES):
        heard, unheard = simulate(seed, workload, trace=True), plain_run(seed, workload)
        assert heard.trace
        assert unheard.trace == ()
        assert replace(heard, trace=()) == unheard
        diagram = Diagram(as_mermaid(heard))
        assert len(diagram.participants) <= PARTICIPANTS_MAX
        # In addition: hidden participants, omitted steps, and the verdict.
        assert 3 <= len(diagram.rows) <= ROWS_MAX + 3
        assert diagram.title == f"seed {seed}, workload {workload}"


@pytest.mark.parametrize("every_step", [False, True])
def test_the_lines_have_columns(every_step: bool) -> None:
    result = simulate(4, "recovery", trace=True)
    lines = as_text(result, every_step=every_step)
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches)
    times = [float(match[1]) for match in matches if match]
    assert times == sorted(times)
    assert len({match.start(3) for match in matches if match}) == 1
    actors = {match[2] for match in matches if match}
    assert {"writer-0", "judge-0", "bookie-0", "nemesis"} <= actors
    if every_step:
        assert len(lines) == len(result.trace)


def a_quiet_plan() -> RunPlan:
    """One writer that abandons its ledger, and two harmless faults, independent of seeds."""
    plan = RunPlan.make(4, "calm")
    ledger = replace(
        plan.ledgers[0], number=0, kind="plain", shape=(3, 3, 2), begin_s=0.0, batches=5,
        batch_entries_max=3, pause_s=0.05, end="abandon", recoveries_s=(), tails_s=(),
        reads_s=(), delete_s=None,
    )  # fmt: skip
    faults = (Fault(1.0, "restart", "bookie-0", 0.5), Fault(1.2, "slow network", "", 0.2))
    return replace(plan, bookies=4, ledgers=(ledger,), schedule=faults)


def test_the_trace_has_every_kind_of_step() -> None:
    plan = a_quiet_plan()
    text = "\n".join(as_text(run_plan(plan, trace=True), every_step=True))
    for step in (
        r"writer-0 +create ledger \d+ ",
        r"writer-0 +-> metadata: create OPEN ledger \d+ \(from 0: bookie-",
        r"writer-0 +-> bookie-\d: add \d+ of ledger ",
        r"bookie-\d +--> writer-0: added \d+ of ledger",
        r"-> metadata: store IN_RECOVERY ledger \d+ \(from 0: bookie-",
        r"-> bookie-\d: fence, read ",
        r"-> metadata: store CLOSED ledger \d+ \(last entry -?\d+, from 0: ",
        r"judge-0 +recovered ",
        r"nemesis +restart bookie-0 for 0\.500 s",
        r"nemesis +slow network for 0\.200 s",
        r"nemesis +calm",
    ):
        assert re.search(step, text), step


def test_a_long_text_is_shortened_in_the_middle() -> None:
    lines = [str(number) for number in range(100)]
    assert middle_left_out(lines, 100) == lines
    told = middle_left_out(lines, 20)
    assert len(told) == 20
    assert (told[0], told[-1]) == ("0", "99")
    assert "... 81 steps are omitted ..." in told
    assert len(as_text(simulate(1, "all", trace=True))) <= TEXT_LINES_MAX


def test_the_trace_ends_at_the_violated_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    recovery_closes_at_the_lac(monkeypatch)
    result = run_plan(failing_plan("recovery"), trace=True)
    assert result.failure is not None
    assert result.trace[-1].kind is StepKind.INVARIANT
    assert result.trace[-1].verb == f"{result.failure.invariant}: {result.failure.what}"
    ledger = re.search(r"ledger (\d+)", result.failure.what)
    assert ledger is not None
    diagram = Diagram(as_mermaid(result))
    assert result.failure.invariant in diagram.rows[-1]
    # Only what concerns the ledger is shown. Its number is in the title, and in no message.
    assert diagram.title.endswith(f"ledger {ledger[1]}")
    assert not any("ledger" in row for row in diagram.rows[:-1])
    assert any("store CLOSED" in row for row in diagram.rows)


# -- the diagram ------------------------------------------------------------------------------

TEXT = r"(?P<text>(?:[^#;<>\n]|<br/>)+)"
TITLE = re.compile(rf"    title: {TEXT}")
PARTICIPANT = re.compile(rf"    participant (?P<name>p\d+) as {TEXT}")
MESSAGE = re.compile(rf"    (?P<a>p\d+)(?:->>|-->>)(?P<b>p\d+): {TEXT}")
NOTE = re.compile(rf"    Note over (?P<a>p\d+)(?:,(?P<b>p\d+))?: {TEXT}")


class Diagram:
    """As strict as Mermaid is, or stricter: everything is declared once, before it is used."""

    def __init__(self, source: str) -> None:
        assert source.endswith("\n")
        lines = source[:-1].split("\n")
        assert lines[0] == "sequenceDiagram"
        title = TITLE.fullmatch(lines[1])
        assert title is not None, lines[1]
        self.title = title["text"]
        self.participants: dict[str, str] = {}
        self.rows: list[str] = []
        for line in lines[2:]:
            declared = PARTICIPANT.fullmatch(line)
            if declared is not None:
                assert not self.rows, "declared after its use"
                assert declared["name"] not in self.participants
                self.participants[declared["name"]] = declared["text"]
                continue
            row = MESSAGE.fullmatch(line) or NOTE.fullmatch(line)
            assert row is not None, line
            assert {row["a"], row["b"] or row["a"]} <= set(self.participants), line
            self.rows.append(row["text"])
        assert len(set(self.participants.values())) == len(self.participants)


def test_texts_in_a_diagram_are_escaped() -> None:
    trace = (
        TraceStep(
            0.0, StepKind.METADATA, "writer-0", "create;#\n", "metadata", 1, note="<b>; a\nb #35;"
        ),
        TraceStep(1.0, StepKind.BOOKIE, "bookie-0", "start failed", note="x;" * 400),
        TraceStep(1.0, StepKind.REQUEST, "writer-0", "add", "bookie-0", 1, 0, 0),
    )
    failure = RunFailure("an_invariant", "ledger 1: #1; gone\n" + "very " * 500)
    result = RunResult(1, "all", "", 1.0, 3, 1, failure, (), trace)
    diagram = Diagram(as_mermaid(result))
    assert list(diagram.participants.values()) == ["writer-0", "bookie-0", "metadata"]
    assert len(diagram.rows) == 4


def test_a_diagram_can_have_only_bookies() -> None:
    trace = (
        TraceStep(0.0, StepKind.BOOKIE, "bookie-0", "serving"),
        TraceStep(1.0, StepKind.FAULT, "nemesis", "sessions expire"),
    )
    failure = RunFailure("quiet_heals", "120 s after the last fault: bookie-0")
    diagram = Diagram(as_mermaid(RunResult(1, "all", "", 1.0, 3, 1, failure, (), trace)))
    assert list(diagram.participants.values()) == ["bookie-0"]
    assert diagram.rows == [
        "1.000 s, sessions expire", "quiet_heals: 120 s after the last fault: bookie-0",
    ]  # fmt: skip


def test_a_run_without_messages_has_an_empty_diagram() -> None:
    assert Diagram(as_mermaid(RunResult(1, "all", "", 1.0, 0, 0, None, ()))).rows == []
