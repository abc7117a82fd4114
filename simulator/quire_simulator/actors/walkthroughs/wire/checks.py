"""The comparison of what a bookie answers and counts with what is known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.codec.wire.v3 import FIRST_BYTE, frame, parse_response
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.actors.walkthroughs.wire.driven_bookie import DrivenBookie
from quire_simulator.actors.walkthroughs.wire.known_bookie import Expected, KnownBookie
from quire_simulator.actors.walkthroughs.wire.raw_client import (
    POLL_S,
    RawClient,
    without_timestamp,
)
from quire_simulator.actors.walkthroughs.wire.requests import key_of
from quire_simulator.machine.clock import EPOCH_MS

SHOWN_MAX = 240
LATER_WITH_KNOBS_S = 30.0
"""Seconds by which answers may be late if limits were drawn as knobs."""


async def check_answers(
    walk: Walk, known: KnownBookie, clients: Sequence[RawClient], seconds: float
) -> None:
    """Wait for the answers of all requests that do not wait themselves, and compare them."""
    loop = walk.stage.world.loop
    begin_s = loop.time()
    order: dict[tuple[int, int, int], list[Expected]] = {}
    for one in known.open:
        if one.order is not None:
            order.setdefault(one.order, []).append(one)
    while True:
        for client in clients:
            for at_s, data in client.frames:
                _take(walk, known, client, at_s, data, order)
            client.frames.clear()
        waiting = {id(poll.expected) for poll in known.polls}
        lost = {client.number for client in clients if client.lost}
        here = {client.number for client in clients}
        for one in list(known.open):
            if one.optional and (one.key[0] in lost or one.key[0] not in here):
                known.open.remove(one)
                _count_maybe(known, one)
        left = [one for one in known.open if id(one) not in waiting]
        if not left:
            return
        slow_s = max(one.latest_s for one in left) + 1.0 + _patience_s(walk)
        if loop.time() > max(begin_s + seconds, slow_s):
            what = f"no answer to {left[0].what} (and {len(left) - 1} others)"
            walk.fail("answers_follow_the_protocol", what)
            return
        await asyncio.sleep(POLL_S)


def _take(
    walk: Walk,
    known: KnownBookie,
    client: RawClient,
    at_s: float,
    data: bytes,
    order: dict[tuple[int, int, int], list[Expected]],
) -> None:
    walk.stage.checker.checks += 1
    key = key_of(client.number, data)
    candidates = [one for one in known.open if one.key == key]
    if not candidates:
        walk.fail("answers_follow_the_protocol", f"nobody asked for {_shown(data)}")
        return
    for poll in known.polls:
        if poll.expected in candidates and at_s >= poll.deadline_s:
            poll.expected.allow()  # It has ended in the present state.
    shown = data
    data, moved_at_ms = without_timestamp(data) if data[4] == FIRST_BYTE else (data, 0)
    # A later one of several equal requests has fewer right answers, so it is looked at first.
    for one in sorted(candidates, key=lambda one: len(one.allowed)):
        plain = data
        if one.free_bytes is not None:
            plain = _without_free_bytes(walk, one, data)
        if plain not in one.allowed and one.pieced is not None:
            pieced = one.pieced(plain)
            if pieced is not None:
                one.allowed[plain] = {pieced}
        if plain in one.allowed:
            break
    else:
        wanted = " or ".join(_shown(right) for right in candidates[0].allowed)
        what = f"{candidates[0].what} was answered {_shown(shown)}, instead of {wanted}"
        walk.fail("answers_follow_the_protocol", what)
        return
    known.open.remove(one)
    known.polls = [poll for poll in known.polls if poll.expected is not one]
    if one.again is not None:
        known.count_read(one, one.allowed[plain])
    if at_s < one.earliest_s and one.ledger_id not in known.changed:
        what = f"{one.what} was answered {one.earliest_s - at_s:.3f} s too early"
        walk.fail("answers_follow_the_protocol", what)
    if one.latest_s and at_s > one.latest_s + _patience_s(walk):
        what = f"{one.what} was answered {at_s - one.latest_s:.3f} s too late"
        walk.fail("answers_follow_the_protocol", what)
    _check_moved(walk, one, moved_at_ms, at_s, data)
    if one.order is not None:
        rest = order.get(one.order, [])
        if one in rest:
            if rest[0] is not one:
                what = f"{one.what} was answered before {rest[0].what}"
                walk.fail("answers_follow_the_protocol", what)
            rest.remove(one)


def _patience_s(walk: Walk) -> float:
    """Return how much later an answer may be than usual."""
    return LATER_WITH_KNOBS_S if walk.stage.plan.knobs else 0.0


def _check_moved(walk: Walk, one: Expected, moved_at_ms: int, at_s: float, data: bytes) -> None:
    """Check the time when the LAC moved, in the answer to a read that waited for it."""
    if moved_at_ms and not one.moves:
        walk.fail("answers_follow_the_protocol", f"{one.what}: the LAC has not moved")
    if not moved_at_ms:
        if one.must_move and data[4] == FIRST_BYTE and not parse_response(data[4:]).status:
            what = f"{one.what}: the answer does not say when the LAC moved"
            walk.fail("answers_follow_the_protocol", what)
        return
    ago_s = at_s - (moved_at_ms - EPOCH_MS) / 1_000
    if not -0.002 <= ago_s <= 5.0 + _patience_s(walk):
        walk.fail("answers_follow_the_protocol", f"{one.what}: the LAC moved {ago_s:.3f} s ago")


def _without_free_bytes(walk: Walk, one: Expected, data: bytes) -> bytes:
    """Return the answer without the free bytes, which must be within bounds."""
    assert one.free_bytes is not None
    answer = parse_response(data[4:])
    info = answer.getBookieInfoResponse
    least, most = one.free_bytes
    if not info.HasField("freeDiskSpace") or not least <= info.freeDiskSpace <= most:
        what = f"{one.what}: {info.freeDiskSpace} free bytes are not within {least} and {most}"
        walk.fail("answers_follow_the_protocol", what)
    info.ClearField("freeDiskSpace")
    return frame(answer)


def _count_maybe(known: KnownBookie, one: Expected) -> None:
    """Count a request whose answer was lost with its connection."""
    if one.again is not None:
        known.counts.add("requests_dropped", 0, 1)  # if it waited for memory
        known.count_read(one, {None, *(found for of in one.allowed.values() for found in of)})


def _shown(data: bytes) -> str:
    """Return an answer as text."""
    if data[4] == FIRST_BYTE:
        text = " ".join(str(parse_response(data[4:])).split())
    else:
        text = data.hex()
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}...{text[-SHOWN_MAX // 4 :]}"


def check_counters(
    walk: Walk, known: KnownBookie, box: DrivenBookie, clients: Sequence[RawClient]
) -> None:
    """Compare the counters of a bookie that rests with what is known."""
    values, counts = box.values(), known.counts
    service = box.bookie.service
    # A read that waits is counted when it is answered.
    for name in (
        "connections", "adds", "add_bytes", "add_batches", "copies", "adds_refused", "reads",
        "reads_missing", "reads_failed", "read_bytes", "fences", "long_polls", "forces",
        "requests_refused", "requests_dropped",
    ):  # fmt: skip
        least, most = counts.least.get(name, 0), counts.most.get(name, 0)
        walk.between(f"{name} of the bookie", values[f"quire_bookie_{name}_total"], least, most)
    adds, reads = values["quire_bookie_adds_total"], values["quire_bookie_reads_total"]
    batches = values["quire_bookie_add_batches_total"]
    walk.between("batches of adds", batches, min(adds, 1), adds)
    if counts.most.get("adds_refused", 0):
        walk.between("refused adds", values["quire_bookie_adds_refused_total"], 1, 1 << 60)
    disk = values["quire_bookie_reads_from_disk_total"]
    walk.between("reads from the disk", disk, 0, reads)
    for name, wanted in {
        "bookie_WRITE_BYTES": values["quire_bookie_add_bytes_total"],
        "bookie_READ_BYTES": values["quire_bookie_read_bytes_total"],
        "bookie_read_cache_misses": disk,
        "bookie_read_cache_hits": reads - disk,
        "bookie_SERVER_STATUS": 0 if known.readonly else 1,
        "bookie_ledgers_count": len(known.ledgers),
        "quire_bookie_connections": sum(not client.lost for client in clients),
        "quire_bookie_long_polls": len(known.polls),
        "quire_bookie_answer_bytes": 0,
        "quire_bookie_waiting_requests": 0,
        "quire_bookie_waiting_connections": 0,
        "quire_bookie_partial_bytes": 0,
        "quire_bookie_connections_stalled_total": 0,
        "quire_bookie_connections_refused_total": 0,
        "quire_bookie_connections_displaced_total": 0,
        "quire_bookie_connections_silent_total": 0,
        "quire_bookie_connections_unfinished_total": 0,
        "quire_bookie_background_errors_total": 0,
        "quire_bookie_tls_connections_total": 0,
        "quire_bookie_min_free_bytes": box.config.min_free_bytes,
    }.items():
        walk.same(name, values[name], wanted)
    times, log = service.times, box.bookie.log_times
    timed = times.reads.count + times.reads_failed.count
    walk.between("timed reads", timed, counts.least.get("timed", 0), reads)
    missing = values["quire_bookie_reads_missing_total"]
    missing += values["quire_bookie_reads_failed_total"]
    walk.between("timed reads of what is not here", times.reads_failed.count, 0, missing)
    walk.same("timed fences", times.fences.count, values["quire_bookie_fences_total"])
    walk.same("timed fences that failed", times.fences_failed.count, 0)
    walk.same("timed adds that failed", times.adds_failed.count, 0)
    copies = values["quire_bookie_copies_total"]
    walk.between("timed adds", log.answered.count, adds - copies, adds)
    for name, times_of in (
        ("reads", times.reads), ("reads of what is not here", times.reads_failed),
        ("fences", times.fences), ("adds", log.answered),
    ):  # fmt: skip
        # A read that waited for a LAC may count with its wait.
        most_s = times_of.count * (5.0 + box.config.max_long_poll_s)
        walk.between(f"seconds of {name}", times_of.sum_s, 0, most_s)
