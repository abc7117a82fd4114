"""Spans of OpenTelemetry, where a program hands its client a tracer; without one, next to nothing.

Spans are of calls, of batches and of requests for many entries, never of single entries. Only what
a program with a tracer has anyway is imported (`opentelemetry-api`, the extra `otel`), and only
then. What each span is and has: docs/guides/client-observability.md.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from quire.errors import QuireError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    Value = str | bool | int | float | list[str]

_NOTHING: AbstractContextManager[None] = nullcontext()


def _attributes(values: dict[str, Value]) -> dict[str, Value]:
    return {f"quire.{name}": value for name, value in values.items()}


class Tracing:
    """The tracer of one client, or none."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    def span(self, name: str, **values: Value) -> AbstractContextManager[Span | None]:
        """The span of a block of code, a child of the caller's. An error that leaves the block is
        its status. None where there is no tracer."""
        if self._tracer is None:
            return _NOTHING
        return self._tracer.start_as_current_span(f"quire.{name}", attributes=_attributes(values))

    def of_session(self, ledger_id: int) -> SessionSpans | None:
        """To be called where the session is made: what it does in the background is linked to the
        caller's span."""
        return None if self._tracer is None else SessionSpans(self._tracer, ledger_id)


def note(span: Span | None, **values: Value) -> None:
    """What is known only at the end of a block."""
    if span is not None:
        span.set_attributes(_attributes(values))


class SessionSpans:
    """Of the adds to one ledger."""

    def __init__(self, tracer: Tracer, ledger_id: int) -> None:
        from opentelemetry.trace import Link, get_current_span

        self._tracer = tracer
        self._ledger_id = ledger_id
        made_by = get_current_span().get_span_context()
        self._links = [Link(made_by)] if made_by.is_valid else []
        self._batches: deque[tuple[int, Span]] = deque()
        """By last entry, ascending: as many as the session has batches without acknowledgement."""

    def sent(self, first: int, last: int, size_bytes: int) -> None:
        span = self._tracer.start_span(
            "quire.add",
            attributes={
                "quire.ledger_id": self._ledger_id,
                "quire.first_entry": first,
                "quire.last_entry": last,
                "quire.size_bytes": size_bytes,
            },
        )
        if span.is_recording():  # else it is not sampled
            self._batches.append((last, span))

    def accepted(self, through: int) -> None:
        batches = self._batches
        while batches and batches[0][0] <= through:
            batches.popleft()[1].end()

    def failed(self, error: QuireError) -> None:
        """The session is over: what it sent and nobody acknowledged may or may not be there."""
        from opentelemetry.trace import StatusCode

        batches, self._batches = self._batches, deque()
        for _, span in batches:
            span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
            span.end()

    def ensemble_change(self, failed: list[str]) -> AbstractContextManager[Span]:
        """A trace of its own: it happens behind the back of all callers, whose spans may be over
        since long."""
        from opentelemetry.context import Context

        return self._tracer.start_as_current_span(
            "quire.ensemble_change",
            context=Context(),
            links=self._links,
            attributes=_attributes({"ledger_id": self._ledger_id, "failed": failed}),
        )
