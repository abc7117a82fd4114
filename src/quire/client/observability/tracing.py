"""OpenTelemetry spans for programs that pass a tracer to their client.

Spans cover calls, batches and requests for many entries, never single entries. Without a tracer
they cost next to nothing. `opentelemetry-api` (the extra `otel`) is imported only if there is a
tracer. docs/guides/programs/client-observability.md describes each span.

The tracer, its exporters and its span processors are code of the program. An error of theirs breaks
no call: the event loop's exception handler receives the first of each kind, and the span is
missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from quire._runtime.tasks import UnexpectedErrors
from quire.errors import QuireError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    Value = str | bool | int | float | list[str]

_NOTHING: AbstractContextManager[None] = nullcontext()


def _attributes(values: dict[str, Value]) -> dict[str, Value]:
    return {f"quire.{name}": value for name, value in values.items()}


class GuardedSpan(AbstractContextManager["GuardedSpan | None"]):
    """The span of a block of code. An error of the tracer does not leave the block."""

    def __init__(
        self,
        begin: Callable[[], AbstractContextManager[Span]],
        report: Callable[[Exception], None],
    ) -> None:
        self._begin = begin
        self._report = report
        self._inner: AbstractContextManager[Span] | None = None
        self._span: Span | None = None

    def __enter__(self) -> GuardedSpan | None:
        try:
            inner = self._begin()
            self._span = inner.__enter__()
        except Exception as error:  # noqa: BLE001 - the tracer is code of the program
            self._report(error)
            return None
        self._inner = inner
        return self

    def set_attributes(self, attributes: dict[str, Value]) -> None:
        try:
            if self._span is not None:
                self._span.set_attributes(attributes)
        except Exception as error:  # noqa: BLE001 - the span is code of the program
            self._report(error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._inner is None:
            return
        try:
            self._inner.__exit__(kind, error, trace)
        except Exception as raised:  # noqa: BLE001 - the tracer is code of the program
            if raised is not error:
                self._report(raised)


class Tracing:
    """The spans of one client.

    Without a tracer, every method does nothing and returns a placeholder or None.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self._unexpected = UnexpectedErrors()

    def _report(self, error: Exception) -> None:
        message = "the tracer of a client failed: spans are missing"
        self._unexpected.note("tracing", error, message)

    def span(self, name: str, **values: Value) -> AbstractContextManager[GuardedSpan | None]:
        """Return a context manager for the span of a block of code.

        The span is a child of the caller's span, and its attributes are `values`. An error that
        leaves the block becomes the status of the span. Entering the context manager returns the
        span, or None without a tracer.
        """
        if self._tracer is None:
            return _NOTHING
        begin = partial(
            self._tracer.start_as_current_span, f"quire.{name}", attributes=_attributes(values)
        )
        return GuardedSpan(begin, self._report)

    def of_session(self, ledger_id: int) -> SessionSpans | None:
        """Return the spans of a session that adds to a ledger, or None without a tracer.

        Call this while the session is being made. The span that is current then is linked to the
        spans of the session's ensemble changes, which run in the background.
        """
        if self._tracer is None:
            return None
        return SessionSpans(self._tracer, ledger_id, self._report)


def note(span: GuardedSpan | None, **values: Value) -> None:
    """Add attributes to a span, each with the prefix "quire.". Without a span nothing happens."""
    if span is not None:
        span.set_attributes(_attributes(values))


class SessionSpans:
    """The spans of the batches that one session adds to a ledger, and of its ensemble changes."""

    def __init__(self, tracer: Tracer, ledger_id: int, report: Callable[[Exception], None]) -> None:
        """Create the spans of a session. `report` is called with each error of the tracer."""
        from opentelemetry.trace import Link, get_current_span

        self._tracer = tracer
        self._report = report
        self._ledger_id = ledger_id
        made_by = get_current_span().get_span_context()
        self._links = [Link(made_by)] if made_by.is_valid else []
        self._batches: deque[tuple[int, Span]] = deque()
        """The last entry and the span of each batch that is not acknowledged yet, in the order of
        entries."""

    def sent(self, first: int, last: int, size_bytes: int) -> None:
        try:
            span = self._tracer.start_span(
                "quire.add",
                attributes={
                    "quire.ledger_id": self._ledger_id,
                    "quire.first_entry": first,
                    "quire.last_entry": last,
                    "quire.size_bytes": size_bytes,
                },
            )
            if span.is_recording():  # otherwise it is not sampled
                self._batches.append((last, span))
        except Exception as error:  # noqa: BLE001 - the tracer is code of the program
            self._report(error)

    def accepted(self, through: int) -> None:
        batches = self._batches
        while batches and batches[0][0] <= through:
            self._end(batches.popleft()[1])

    def failed(self, error: QuireError) -> None:
        """End all spans with an error. It is unknown whether their entries are in the ledger."""
        batches, self._batches = self._batches, deque()
        for _, span in batches:
            self._end(span, error)

    def _end(self, span: Span, failure: QuireError | None = None) -> None:
        from opentelemetry.trace import StatusCode

        try:
            if failure is not None:
                span.set_status(StatusCode.ERROR, f"{type(failure).__name__}: {failure}")
            span.end()
        except Exception as error:  # noqa: BLE001 - the tracer is code of the program
            self._report(error)

    def ensemble_change(self, failed: list[str]) -> AbstractContextManager[GuardedSpan | None]:
        """Return the span of an ensemble change.

        It begins a trace of its own, because the spans of all callers may have ended long before.
        """
        from opentelemetry.context import Context

        begin = partial(
            self._tracer.start_as_current_span,
            "quire.ensemble_change",
            context=Context(),
            links=self._links,
            attributes=_attributes({"ledger_id": self._ledger_id, "failed": failed}),
        )
        return GuardedSpan(begin, self._report)
