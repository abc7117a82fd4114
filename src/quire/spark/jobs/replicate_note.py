"""The note of a continuous `replicate`, which tells people that the copy has stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from quire.client import Client
from quire.replication.marks.copy_notes import (
    SAY_INTERVAL_S,
    STREAMS_NAMED_MAX,
    TEXT_MAX,
    CopyNote,
    CopyReporter,
    StreamLag,
)

Measure = Callable[[], Awaitable[Sequence[StreamLag]]]


@asynccontextmanager
async def noted(
    source: Client, target: Client, note: CopyNote, measure: Measure
) -> AsyncIterator[None]:
    """Keep a note of a copy during the context.

    The note is removed if the context ends without an error or is cancelled, because somebody
    demanded that. After an error the note stays, and says why the copy has ended.

    Args:
        source: The client of the source's cluster.
        target: The client of the target's cluster.
        note: The note, with what does not change.
        measure: Returns how far the copy of each stream is, as far as it is known soon.
    """
    same = note.source_id == note.target_id
    stores = [one.metadata for one in ((target,) if same else (source, target))]
    reporter, now_ms = CopyReporter(stores, note), target.clock.now_ms
    saying = asyncio.create_task(_say(reporter, now_ms, measure))
    try:
        await reporter.say(now_ms())
        yield
    except asyncio.CancelledError:
        await _end(saying)
        await reporter.leave()
        raise
    except BaseException as error:
        await _end(saying)
        await reporter.say(now_ms(), error=_reason(error))
        raise
    await _end(saying)
    await reporter.leave()


async def _say(reporter: CopyReporter, now_ms: Callable[[], int], measure: Measure) -> None:
    while True:
        await asyncio.sleep(SAY_INTERVAL_S)
        await reporter.say(now_ms(), **report_of(await measure()))


async def _end(saying: asyncio.Task[None]) -> None:
    saying.cancel()
    await asyncio.gather(saying, return_exceptions=True)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)[:TEXT_MAX] or type(error).__name__


def report_of(found: Sequence[StreamLag]) -> dict[str, Any]:
    """Return how far the copies are behind, as fields of a `CopyNote`."""
    working = [one for one in found if not one.error]
    known = all(one.records is not None for one in working)
    behind = [one for one in found if one.error or one.records != 0]
    behind.sort(key=lambda one: (not one.error, -(one.seconds or 0.0), one.stream))
    return {
        "count": len(found),
        "failed": len(found) - len(working),
        "records": sum(one.records or 0 for one in working) if known else None,
        "seconds": max((one.seconds or 0.0 for one in working), default=0.0) if known else None,
        "lags": tuple(behind[:STREAMS_NAMED_MAX]),
    }
