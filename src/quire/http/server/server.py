"""The HTTP server: it connects aiohttp with the route table, and enforces all limits.

`_Connection` adds the time-outs that aiohttp lacks. It disconnects a peer that does not complete
the head of a request, or does not receive its answer.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from quire._runtime.event_log import EventLog
from quire._runtime.names.extras import install_extra
from quire._runtime.shortages import http_connections_max, limit, reason_of
from quire._runtime.units import counted, host_port
from quire.errors import QuireError, StartError
from quire.http.server.api import Api, Call, Reply, Route, Text
from quire.http.server.audit import Attempt, ChangeAudit
from quire.http.server.error_responses import error_body, status_of
from quire.http.server.openapi import PATH as OPENAPI_PATH
from quire.http.server.openapi import document
from quire.http.server.security import AccessGate, HttpOptions, RefusedRequest, check_options
from quire.net.accepting import Listener
from quire.net.certificates import CertificateExpiry, expiries
from quire.net.tls import TlsContext, server_tls

try:
    from aiohttp import ETag, web
    from aiohttp.http_exceptions import HttpProcessingError
except ImportError as error:  # pragma: no cover - the tests have it
    raise StartError(
        "the HTTP server needs the Python package aiohttp, which is not installed",
        remedy=install_extra("http"),
    ) from error

BACKLOG = 128
LINGER_S = 1.0
"""Seconds to read and discard the rest of a refused request, before the connection is closed."""
CLOSE_TIMEOUT_S = 3.0
"""Seconds that running requests get when the server stops."""
CHANGES_HEADER = "Quire-Changes"
"""The header in which each answer says whether its client may change something (see `Changes`). The
dashboard disables its buttons accordingly."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PortTakenError(StartError):
    """The error for a port on which another process already listens."""


class HttpServer:
    """A server of an `Api` in the running event loop. Call `start`, and later `stop`."""

    def __init__(
        self,
        api: Api,
        options: HttpOptions,
        *,
        version: str,
        monotonic: Callable[[], float],
        log: EventLog,
        elsewhere: Callable[[], str] | None = None,
    ) -> None:
        """Create a server.

        If `elsewhere` is given, the error of an unknown path contains what it returns, instead of
        the route that lists all routes.

        The route of the OpenAPI document is added to `api`. Raises UsageError for impossible
        options, StartError for options that would give access to everybody, and TlsConfigError for
        TLS files that cannot be used.
        """
        check_options(options)
        self.options = options
        self.port = 0
        """The port that the server listens on, once it has started."""
        self.requests = 0
        self.refused = 0
        self.failed = 0
        self.displaced = 0
        """The number of connections that were closed to admit another one."""
        self.turned_away = 0
        """The number of connections that were refused because no other could be closed for them."""
        self.api = api
        self._elsewhere = elsewhere
        self._log = log
        self._gate = AccessGate(options)
        self.audit = ChangeAudit(log)
        self._busy = 0
        self.connections: dict[asyncio.BaseTransport, _Connection] = {}
        self.connections_max = http_connections_max(options.max_connections, limit())
        """The number of connections that the server keeps at once, which is less than the option
        says if the process may have few file descriptors."""
        self._tls: TlsContext | None = None
        if options.tls is not None:
            self._tls = server_tls(options.tls, monotonic, log)
        api.add([self._openapi(api, version)])
        app = web.Application(
            client_max_size=options.max_body_bytes, middlewares=[self._errors_as_json]
        )
        for route in api.routes:
            handler = self._handler(route)
            # HEAD gets the same answer as GET, without the body.
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                app.router.add_route(method, route.path, handler)
                if not route.fields:  # Apache documents paths with a final slash, its code has none
                    app.router.add_route(method, route.path + "/", handler)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_ProtocolLog(self._count_refused),
            keepalive_timeout=options.head_timeout_s,
            lingering_time=LINGER_S,
            max_line_size=options.max_head_bytes,
            max_field_size=options.max_head_bytes,
            shutdown_timeout=CLOSE_TIMEOUT_S,
        )
        self._listener: Listener | None = None

    async def start(self) -> None:
        """Start listening.

        Raises PortTakenError if another process uses the port, and StartError if it cannot be bound
        for another reason.
        """
        options = self.options
        await self._runner.setup()
        inner = self._runner.server
        assert inner is not None
        try:
            sock = _bound(options.host, options.port)
            self._listener = Listener(
                sock,
                lambda: _Connection(inner(), self),
                backlog=BACKLOG,
                tls=self._ssl_context(),
                handshake_timeout_s=options.head_timeout_s,
            )
        except OSError as error:
            await self._runner.cleanup()
            taken = error.errno == errno.EADDRINUSE
            reason = "the port is in use" if taken else reason_of(error)
            raise (PortTakenError if taken else StartError)(
                f"the HTTP server cannot listen on {host_port(options.host, options.port)}: "
                f"{reason}",
                remedy="Choose another address with --http",
            ) from None
        self.port = sock.getsockname()[1]

    async def stop(self) -> None:
        """Stop, after waiting up to `CLOSE_TIMEOUT_S` for running requests. Safe to call twice."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._runner.cleanup()
        for one in list(self.connections.values()):
            one.abort()
        self.audit.close()

    def make_room(self) -> bool:
        """Close an idle connection, and return whether there was one.

        The connection that has waited longest for its first request is closed. If there is none,
        the one that has waited longest since its last request is closed, even if its client has not
        received the whole answer.
        """
        resting = [one for one in self.connections.values() if one.at_rest]
        if not resting:
            return False
        victim = min(resting, key=lambda one: (one.proven, one.resting_since_s))
        self.displaced += 1
        # `leave` frees its place at once.
        victim.leave()
        return True

    @property
    def url(self) -> str:
        return f"{self.options.scheme}://{host_port(self.options.host, self.port)}"

    def certificates(self, now_ms: int) -> list[CertificateExpiry]:
        """Return when the certificates of this server expire. The list is empty without HTTPS."""
        return expiries(self._tls.certificates(), now_ms) if self._tls is not None else []

    def _ssl_context(self) -> ssl.SSLContext | None:
        """Return a TLS context that loads changed files at the next handshake.

        Return None without HTTPS.
        """
        if self._tls is None:
            return None
        tls, first = self._tls, self._tls.current()

        def choose(connection: Any, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = tls.current()

        first.sni_callback = choose
        return first

    def _openapi(self, api: Api, version: str) -> Route:
        async def answer(call: object) -> dict[str, Any]:
            return document(api, version, self.options)

        return Route("GET", OPENAPI_PATH, "Return the OpenAPI document of this API", answer)

    # -- one request --------------------------------------------------------------------------

    def _handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            headers: dict[str, list[str]] = {}
            for name, value in request.headers.items():
                headers.setdefault(name.lower(), []).append(value)
            token = self._gate.token_given(headers)
            refusal = self._gate.refusal(
                headers,
                token,
                changes=route.changes,
                has_body=request.can_read_body,
                open=route.open,
                payloads=route.payloads,
            )
            given = {**request.query, **request.match_info}
            attempt = Attempt(
                route, _peer(request), headers.get("user-agent", [""])[0], token, given
            )
            response = await self._respond(attempt, request, refusal)
            if _has(request, response.etag):
                response = _not_modified(response)
            response.headers[CHANGES_HEADER] = self._gate.changes(token)
            return response

        return handle

    async def metrics_text(self) -> str:
        """Return what the route /metrics answers. There must be such a route."""
        route = next(one for one in self.api.routes if one.path == "/metrics")
        answer = await route.handler(Call({}, {}, {}))
        assert isinstance(answer, Text)
        return answer.text

    def _may_read(self, request: web.Request) -> bool:
        headers = {name.lower(): request.headers.getall(name) for name in request.headers}
        token = self._gate.token_given(headers)
        return self._gate.refusal(headers, token, changes=False, has_body=False, open=False) is None

    async def _respond(
        self, attempt: Attempt, request: web.Request, refusal: RefusedRequest | None
    ) -> web.StreamResponse:
        """Answer the request, and write an audit event if it would change something."""
        changes = attempt.route.changes
        if refusal is not None:
            if changes:
                self.audit.refused(attempt, refusal)
            return self._refuse(refusal)
        status: int | None = None
        try:
            response = await self._read(attempt, request)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            if changes:
                self.audit.answered(attempt, status)

    async def _read(self, attempt: Attempt, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        try:
            async with asyncio.timeout(self.options.body_timeout_s):
                raw = await request.read()
        except TimeoutError:
            slow = RefusedRequest(
                408,
                f"the body did not arrive within {self.options.body_timeout_s:g} s",
                "Send the body without a pause",
            )
            return self._refuse(slow)
        except web.RequestPayloadError:
            unreadable = RefusedRequest(
                400,
                "the body cannot be decoded, or ends too early",
                "Send it without Content-Encoding, and with its length",
            )
            return self._refuse(unreadable)
        try:
            body = json.loads(raw) if raw else {}
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return self._refuse(
                RefusedRequest(400, "the body is not a JSON object", 'Send {"name": value}')
            )
        attempt.given.update(body)
        if self._busy >= self.options.max_requests:
            again = (("Retry-After", "1"),)
            return self._refuse(
                RefusedRequest(
                    503, "the server handles too many requests already", "Try again", again
                )
            )
        self._busy += 1
        try:
            return await self._answer(attempt.route, request, body)
        finally:
            self._busy -= 1

    async def _answer(
        self, route: Route, request: web.Request, body: dict[str, Any]
    ) -> web.StreamResponse:
        try:
            call = route.check(request.match_info, list(request.query.items()), body)
            async with asyncio.timeout(self.options.request_timeout_s):
                value = await route.handler(call)
            response = _response_of(value)
        except QuireError as error:
            status = status_of(error)
            self.failed += status >= 500
            self.refused += status < 500
            return _json(error_body(error), status)
        except TimeoutError:
            self.failed += 1
            late = f"the request was not finished within {self.options.request_timeout_s:g} s"
            known = not route.changes
            return self._refuse(
                RefusedRequest(504, late, "Check whether the request took effect"),
                outcome_known=known,
            )
        except Exception as error:  # noqa: BLE001 - one request must not end the server
            self.failed += 1
            self._log("http_failed", path=request.path, error=f"{type(error).__name__}: {error}")
            return self._refuse(
                RefusedRequest(
                    500,
                    "an unexpected error happened, which the event http_failed in the server's log "
                    "describes",
                    "Report it as a bug",
                ),
                outcome_known=not route.changes,
            )
        return self._within_bounds(response)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers that clients have not received yet."""
        return sum(one.unsent_bytes for one in self.connections.values())

    def _within_bounds(self, response: web.Response) -> web.Response:
        size = len(response.body) if isinstance(response.body, bytes) else 0
        unsent = self.unsent_bytes
        if not unsent or unsent + size <= self.options.max_answer_bytes:
            return response
        again = (("Retry-After", "1"),)
        why = f"clients have not received {counted(unsent, 'byte')} of other answers yet"
        return self._refuse(RefusedRequest(503, why, "Try again", again))

    def _refuse(self, why: RefusedRequest, *, outcome_known: bool = True) -> web.Response:
        if why.status != 504:
            self.refused += 1
        body = error_body(why, outcome_known=outcome_known)
        response = _json(body, why.status, dict(why.headers))
        if why.status in (401, 403, 408, 413, 415):
            response.force_close()  # the server reads nothing more from this connection
        return response

    def _count_refused(self) -> None:
        self.refused += 1

    @web.middleware
    async def _errors_as_json(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Handle a request, and turn aiohttp's errors into answers in JSON.

        The connection's time-out does not run until the answer is ready.
        """
        connection = self.connections.get(request.transport) if request.transport else None
        if connection is not None:
            connection.rest()
        try:
            return await handler(request)
        except web.HTTPException as error:
            allowed = error.headers.get("Allow")
            headers = (("Allow", allowed),) if allowed else ()
            what, remedy = _WORDS.get(error.status, (error.reason, ""))
            if error.status == 404 and self._elsewhere is not None:
                # It names bookies, so it is only for those who may read.
                remedy = self._elsewhere() if self._may_read(request) else remedy
            return self._refuse(RefusedRequest(error.status, what, remedy, headers))
        finally:
            if connection is not None:
                connection.proven = True
                connection.watch()


def _response_of(value: Any) -> web.Response:
    status = 200
    if isinstance(value, Reply):
        status, value = value.status, value.value
    if isinstance(value, Text):
        headers = {**_HEADERS, "Content-Type": value.content_type, **dict(value.headers)}
        return web.Response(body=_encoded(value.text), status=status, headers=headers)
    return _json(value, status)


_WORDS = {
    404: ("there is no such route", f"GET {OPENAPI_PATH} lists all routes"),
    405: ("the route does not support this method", f"GET {OPENAPI_PATH} lists all routes"),
    413: ("the body is too large", "Send a smaller body"),
}


_FULL_BODY = json.dumps(
    error_body(RefusedRequest(503, "the server is at its limit of connections", "Try again later"))
).encode()
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_FULL_BODY), _FULL_BODY)
)


def _has(request: web.Request, tag: ETag | None) -> bool:
    """Return whether the client has what the tag stands for, as far as its request says."""
    return tag is not None and tag.value in [held.value for held in request.if_none_match or ()]


def _not_modified(response: web.StreamResponse) -> web.Response:
    """Return the answer to a client that has the body of this one already."""
    headers = {name: value for name, value in response.headers.items() if name != "Content-Type"}
    return web.Response(status=304, headers=headers)


def _encoded(text: str) -> bytes:
    """Return the text as UTF-8.

    A part of a character, which a header that is not UTF-8 leads to, becomes an escape of JSON.
    """
    return text.encode("utf-8", "backslashreplace")


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=_encoded(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"),
        status=status,
        headers={**_HEADERS, "Content-Type": "application/json", **(headers or {})},
    )


def _peer(request: web.Request) -> str:
    """Return the address of the other end of the request's connection."""
    found = request.transport.get_extra_info("peername") if request.transport else None
    return host_port(found[0], found[1]) if isinstance(found, tuple) else "unknown"


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address. Raises OSError if it cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class _ProtocolLog(logging.LoggerAdapter[logging.Logger]):
    """The log of aiohttp for one server, without the errors of its peers.

    aiohttp reports each request that is not HTTP, each body that cannot be decoded, and each
    connection that is lost, as an error with a traceback. Anybody who reaches the port could fill
    the log with them, so requests that are not HTTP are only counted.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        """Create the log. `count` is called for each request that is not HTTP."""
        super().__init__(logging.getLogger("aiohttp.server"), {})
        self._count = count

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
        if isinstance(error, HttpProcessingError):
            self._count()
        elif not isinstance(error, ConnectionError | web.RequestPayloadError):
            super().exception(msg, *args, exc_info=exc_info, **more)


class _Connection(asyncio.Protocol):
    """A wrapper of aiohttp's protocol with time-outs and a limit on the number of connections.

    The time-out applies while the connection waits for the head of a request, and while its answer
    is being sent.
    """

    def __init__(self, inner: asyncio.Protocol, server: HttpServer) -> None:
        self._inner = inner
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._admitted = False
        self.resting_since_s = 0.0
        self.proven = False
        """Whether a request was completed on this connection."""

    @property
    def at_rest(self) -> bool:
        """Whether the connection waits for a request, or for its answer to be sent."""
        return self._timer is not None

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "abort")
        self._transport = transport  # type: ignore[assignment]
        server = self._server
        if len(server.connections) >= server.connections_max and not server.make_room():
            server.turned_away += 1
            self._transport.write(_FULL)  # type: ignore[union-attr]
            self._transport.close()  # type: ignore[union-attr]
            return
        self._admitted = True
        server.connections[transport] = self
        self._inner.connection_made(transport)
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.rest()
        if self._admitted:
            self._server.connections.pop(self._transport, None)  # type: ignore[arg-type]
            self._inner.connection_lost(exc)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._admitted:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._admitted else None

    def pause_writing(self) -> None:
        if self._admitted:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._admitted:
            self._inner.resume_writing()

    def watch(self) -> None:
        """Start the time-out for the head of a request, or for sending an answer."""
        self.rest()
        if self._transport is not None:
            loop = asyncio.get_running_loop()
            self.resting_since_s = loop.time()
            self._timer = loop.call_later(self._server.options.head_timeout_s, self.abort)

    def rest(self) -> None:
        """Stop the time-out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self) -> None:
        """Close the connection, and free its place for another one at once."""
        self._server.connections.pop(self._transport, None)  # type: ignore[arg-type]
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
