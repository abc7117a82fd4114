"""The HTTP server refuses bad requests, tested over real sockets with misbehaving peers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from quire._runtime.clock import SystemClock
from quire.config import TlsServerConfig
from quire.errors import MetadataUnavailableError, NoSuchLedgerError, StartError, UsageError
from quire.http.server.api import Api, Call, Field, Reply, Route, Text
from quire.http.server.audit import REFUSED_EVENTS_MAX, Attempt, ChangeAudit
from quire.http.server.error_responses import NotOfferedError
from quire.http.server.security import (
    TOKEN_MIN,
    HttpOptions,
    RefusedRequest,
    check_token,
    is_loopback,
)
from quire.http.server.server import HttpServer
from quire.http.server.static_files import POLICY, static_routes
from tests.support.network.certificates import Authority
from tests.support.waiting import until

TOKEN = "a-token-that-nobody-guesses"
JSON = {"Content-Type": "application/json"}
CHANGES = [("PUT", "/change"), ("DELETE", "/change?number=1"), ("POST", "/press")]
TIMEOUT_S = 20.0
LARGE_BYTES = 32 * 1024 * 1024
"""More than sockets keep."""
BARE = HttpOptions(head_timeout_s=5.0, body_timeout_s=5.0, request_timeout_s=5.0)
"""A server without a token."""
OPTIONS = replace(BARE, token=TOKEN, reads_open=True)
PROTECTED = replace(BARE, token=TOKEN)


class World:
    """The state that the test's routes read and change."""

    def __init__(self) -> None:
        self.changed: list[int] = []
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    def routes(self) -> list[Route]:
        number = Field("number", "integer", "a number", required=True, minimum=1, maximum=9)
        optional, thing = replace(number, required=False), Field("thing", "integer", "it")
        kinds = Field("kind", "string", "a kind", choices=("rw", "ro"))
        return [
            Route("GET", "/look", "Look", self.look, query=(optional, kinds)),
            Route("GET", "/things/{thing}", "One", self.thing, fields=(thing,)),
            Route("PUT", "/change", "Change", self.change, body=(number,)),
            Route("DELETE", "/change", "Change", self.change, query=(number,)),
            Route("POST", "/press", "Change", self.press),
            Route("PUT", "/things/{thing}", "Change", self.tell, fields=(thing,), body=(
                Field("text", "string", "a text"), Field("words", "strings", "a list"),
                Field("code", "string", "a secret", secret=True))),
            Route("PUT", "/fail/{how}", "Fail", self.fail, fields=(Field("how", "string", "how"),)),
            Route("POST", "/show", "Show", self.show, body=(optional,), payloads=True),
            Route("GET", "/wait", "Wait", self.wait),
            Route("GET", "/probe", "Probe", self.probe, open=True),
            Route("GET", "/large", "Large", self.large),
            Route("GET", "/fail/{how}", "Fail", self.fail, fields=(Field("how", "string", "how"),)),
        ]  # fmt: skip

    async def look(self, call: Call) -> Any:
        return dict(call.query)

    async def thing(self, call: Call) -> Any:
        return dict(call.path)

    async def change(self, call: Call) -> Any:
        self.changed.append({**call.body, **call.query}["number"])
        return "changed"

    async def press(self, call: Call) -> Any:
        self.changed.append(0)
        return Reply(202, "pressed")

    async def tell(self, call: Call) -> Any:
        self.changed.append(call.path["thing"])
        return "told"

    async def show(self, call: Call) -> Any:
        return {"payload": "c2VjcmV0", **call.body}

    async def wait(self, call: Call) -> Any:
        self.begun.set()
        await self.go.wait()
        return "waited"

    async def probe(self, call: Call) -> Any:
        return Text("OK")

    async def large(self, call: Call) -> Any:
        return Text("x" * LARGE_BYTES)

    async def fail(self, call: Call) -> Any:
        if call.path["how"] == "never-ends":
            await asyncio.Event().wait()
        raise {
            "missing": NoSuchLedgerError("ledger 7 does not exist"),
            "usage": UsageError("no", remedy="Do not"),
            "store": MetadataUnavailableError("gone", causes={"zk:1": "refused"}),
            "never": NotOfferedError("not here"),
            "bug": ZeroDivisionError("secret of the stack"),
        }[call.path["how"]]


@asynccontextmanager
async def serving(
    options: HttpOptions = OPTIONS,
    events: list[dict[str, Any]] | None = None,
    routes: Sequence[Route] = (),
) -> AsyncIterator[tuple[HttpServer, World]]:
    """Run a server, whose events are added to the list."""
    world, api = World(), Api("Test")
    logged: list[dict[str, Any]] = [] if events is None else events
    api.add([*world.routes(), *routes])
    server = HttpServer(
        api,
        options,
        version="1",
        monotonic=SystemClock().monotonic,
        log=lambda event, **fields: logged.append({"event": event, **fields}),
    )
    await server.start()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield server, world
    finally:
        world.go.set()
        await server.stop()


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def what(self) -> str:
        what: str = self.json["error"]["what"]
        return what


async def raw(server: HttpServer, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Return everything that arrives until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()


async def ask(
    server: HttpServer,
    method: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | Mapping[str, Any] = b"",
    *,
    token: str = TOKEN,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """Send a request with the token, and return the answer."""
    if token:
        headers = {"Authorization": f"Bearer {token}", **(headers or {})}
    if not isinstance(body, bytes):
        body, headers = json.dumps(body).encode(), {**JSON, **(headers or {})}
    fields = {"Host": f"127.0.0.1:{server.port}", "Connection": "close", **(headers or {})}
    if body or method in ("PUT", "POST"):
        fields = {"Content-Length": str(len(body)), **fields}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    got = await raw(server, f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body, context)
    return parsed(got)


def parsed(got: bytes) -> Answer:
    head, _, rest = got.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    named = dict(line.split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), named, rest)


# -- what is let in ---------------------------------------------------------------------------


async def test_every_request_with_the_token_is_answered() -> None:
    async with serving() as (server, world):
        assert (await ask(server, "GET", "/look?number=3")).json == {"number": 3}
        assert (await ask(server, "GET", "/look/?number=3")).json == {"number": 3}
        assert (await ask(server, "GET", "/things/7")).json == {"thing": 7}
        changed = await ask(server, "PUT", "/change", body={"number": 4})
        assert (changed.json, changed.headers["Quire-Changes"]) == ("changed", "allowed")
        assert (await ask(server, "PUT", "/change", body={"number": "5"})).json == "changed"
        assert (await ask(server, "DELETE", "/change?number=6")).status == 200
        assert (await ask(server, "POST", "/press")).status == 202
        assert world.changed == [4, 5, 6, 0]
        named = {"Host": f"LOCALHOST:{server.port}"}
        assert (await ask(server, "GET", "/look", named)).status == 200


async def test_head_returns_the_headers_of_get_without_a_body() -> None:
    async with serving(PROTECTED) as (server, world):
        for target in ("/probe", "/look?number=3", "/look/?number=3", "/things/7", "/nothing"):
            full, bare = await ask(server, "GET", target), await ask(server, "HEAD", target)
            assert (bare.status, bare.body) == (full.status, b"")
            assert bare.headers["Content-Length"] == str(len(full.body))
        assert (await ask(server, "HEAD", "/probe", token="")).status == 200
        assert (await ask(server, "HEAD", "/look", token="")).status == 401
        assert (await ask(server, "HEAD", "/change?number=1")).status == 405
        assert world.changed == []


@pytest.mark.parametrize(
    ("options", "token", "status", "said", "state"),
    [
        (BARE, "", 403, "has no token", "off"),
        (BARE, TOKEN, 403, "has no token", "off"),
        (OPTIONS, "", 401, "token is missing or wrong", "token-needed"),
        (OPTIONS, f"{TOKEN}x", 401, "token is missing or wrong", "token-needed"),
        (replace(OPTIONS, read_only=True), "", 403, "read-only", "read-only"),
        (replace(OPTIONS, read_only=True), TOKEN, 403, "read-only", "read-only"),
        (replace(BARE, read_only=True), "", 403, "read-only", "read-only"),
    ],
)
async def test_a_client_without_permission_to_change_can_still_read(
    options: HttpOptions, token: str, status: int, said: str, state: str
) -> None:
    async with serving(options) as (server, world):
        for method, target in CHANGES:
            body: Any = {"number": 1} if method == "PUT" else b""
            answer = await ask(server, method, target, body=body, token=token)
            assert answer.status == status, (method, target)
            assert said in answer.what
            assert answer.json["error"]["remedy"]
            assert answer.headers["Quire-Changes"] == state
        assert world.changed == []
        read = await ask(server, "GET", "/look?number=3", token=token)
        assert (read.json, read.headers["Quire-Changes"]) == ({"number": 3}, state)


async def test_a_read_only_server_requires_the_token_for_protected_reads() -> None:
    async with serving(replace(PROTECTED, read_only=True)) as (server, world):
        assert (await ask(server, "GET", "/look", token="")).status == 401
        assert (await ask(server, "GET", "/look")).status == 200
        assert (await ask(server, "POST", "/press")).status == 403
        assert world.changed == []


@pytest.mark.parametrize(
    ("options", "without", "with_token", "said"),
    [
        (OPTIONS, 401, 200, "the token is missing or wrong"),
        (PROTECTED, 401, 200, "the token is missing or wrong"),
        (replace(PROTECTED, read_only=True), 401, 200, "the token is missing or wrong"),
        (BARE, 403, 403, "has no token, so it shows no payloads"),
        (replace(OPTIONS, payloads=False), 403, 403, "this server shows no payloads"),
    ],
)
async def test_payloads_need_the_token_even_if_reading_is_open(
    options: HttpOptions, without: int, with_token: int, said: str
) -> None:
    """Such a route changes nothing, although its method is POST: it is allowed on a read-only
    server, and has no audit event.
    """
    events: list[dict[str, Any]] = []
    async with serving(options, events) as (server, _):
        for token in ("", "wrong-token-of-some-length"):
            refused = await ask(server, "POST", "/show", body={"number": 3}, token=token)
            assert (refused.status, b"c2VjcmV0" in refused.body) == (without, False)
            assert said in refused.what
        answer = await ask(server, "POST", "/show", body={"number": 3})
        assert answer.status == with_token
        assert (b"c2VjcmV0" in answer.body) == (with_token == 200)
        foreign = {"Origin": "http://evil.example"}
        assert (await ask(server, "POST", "/show", foreign, {"number": 3})).status == 403
        text = {"Content-Type": "text/plain"}
        assert (await ask(server, "POST", "/show", text, b"{}")).status in (403, 415)
    assert not [one for one in events if one["event"].startswith("http_change")]


async def test_answers_cannot_be_framed_kept_or_read_by_other_pages() -> None:
    async with serving() as (server, _):
        answer = await ask(server, "GET", "/look", {"Origin": "http://evil.example"})
        assert answer.status == 200  # a browser does not give it to the page:
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


async def test_requests_of_other_sites_pages_are_refused() -> None:
    """A page could have whole ledgers read from all bookies, with an image for each."""
    async with serving() as (server, world):
        for site in ("cross-site", "same-site"):
            for dest in ("image", "empty", "iframe", ""):
                foreign = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": dest}
                refused = await ask(server, "GET", "/wait", foreign, token="")
                assert refused.status == 403
                assert "a page of another site" in refused.what
            assert (await ask(server, "GET", "/probe", {"Sec-Fetch-Site": site})).status == 200
        assert not world.begun.is_set()
        for own in (
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"},  # a link was opened
            {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"},
            {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"},
        ):
            assert (await ask(server, "GET", "/look", own, token="")).status == 200


async def test_a_browser_loads_a_file_of_the_dashboard_again_only_if_it_changed() -> None:
    async with serving(routes=static_routes()) as (server, _):
        first = await ask(server, "GET", "/ui/app.js")
        tag = first.headers["ETag"]
        assert (first.status, first.headers["Cache-Control"]) == (200, "no-cache")
        for held in (tag, f'"other", {tag}', f"W/{tag}"):
            again = await ask(server, "GET", "/ui/app.js", {"If-None-Match": held})
            assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
            assert again.headers["Content-Security-Policy"] == POLICY
        for held in ('"other"', "no tag", ""):
            changed = await ask(server, "GET", "/ui/app.js", {"If-None-Match": held})
            assert (changed.status, changed.body) == (200, first.body)
        other = await ask(server, "GET", "/ui/style.css", {"If-None-Match": tag})
        assert other.status == 200


# -- who is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer \u00e9"},
        {"Authorization": "Bearer"},
        {"Cookie": f"token={TOKEN}"},
    ],
)
async def test_only_probes_are_answered_without_the_token(headers: dict[str, str]) -> None:
    async with serving(PROTECTED) as (server, world):
        for method, target in [*CHANGES, ("GET", "/look"), ("GET", "/api/v1/openapi.json")]:
            body: Any = {"number": 1} if method == "PUT" else b""
            answer = await ask(server, method, target, headers, body, token="")
            assert answer.status == 401, (method, target)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert TOKEN.encode() not in answer.body
        assert (await ask(server, "GET", f"/look?token={TOKEN}", token="")).status == 401
        assert (await ask(server, "GET", "/probe", headers, token="")).status == 200
        assert world.changed == []
        assert (await ask(server, "PUT", "/change", body={"number": 1})).status == 200
        twice = "GET /look HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        two = f"Authorization: Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        assert parsed(await raw(server, (twice + two).encode())).status in (400, 401)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "localhost@evil.example",
     "127.0.0.1, evil.example", "10.0.0.1", "0.0.0.0"],
)  # fmt: skip
async def test_a_foreign_host_name_is_refused(host: str) -> None:
    """The server must not be reachable through DNS rebinding."""
    async with serving() as (server, world):
        answer = await ask(server, "PUT", "/change", {"Host": host}, {"number": 1})
        assert answer.status in (400, 403)
        assert (await ask(server, "GET", "/look", {"Host": host})).status in (400, 403)
        assert world.changed == []


async def test_additional_host_names_can_be_configured() -> None:
    async with serving(replace(OPTIONS, names=("bookie7.example",))) as (server, _):
        assert (await ask(server, "GET", "/look", {"Host": "bookie7.example:8080"})).status == 200
        assert (await ask(server, "GET", "/look", {"Host": "bookie8.example"})).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_changes_by_pages_of_other_sites_are_refused(headers: dict[str, str]) -> None:
    async with serving(PROTECTED) as (server, world):
        for method, target in CHANGES:
            body: Any = {"number": 1} if method == "PUT" else b""
            assert (await ask(server, method, target, headers, body)).status == 403
        preflight = {**headers, "Access-Control-Request-Method": "PUT"}
        assert (await ask(server, "OPTIONS", "/change", preflight)).status == 405
        assert world.changed == []
        own = {"Origin": f"http://127.0.0.1:{server.port}", "Sec-Fetch-Site": "same-origin"}
        assert (await ask(server, "PUT", "/change", own, {"number": 1})).status == 200


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "text/json",
     "application/jsonx", "text/plain; application/json"],
)  # fmt: skip
async def test_a_body_of_another_type_is_refused(kind: str) -> None:
    async with serving() as (server, world):
        answer = await ask(server, "PUT", "/change", {"Content-Type": kind}, b'{"number": 1}')
        assert answer.status == 415
        assert "Content-Type: application/json" in answer.json["error"]["remedy"]
        assert world.changed == []
        named = {"Content-Type": "application/json; charset=utf-8"}
        assert (await ask(server, "PUT", "/change", named, b'{"number": 1}')).status == 200


# -- the audit events -------------------------------------------------------------------------


async def test_each_change_is_logged_once_without_secrets() -> None:
    events: list[dict[str, Any]] = []
    async with serving(PROTECTED, events) as (server, _):
        await ask(server, "GET", "/look?number=3")
        await ask(server, "GET", "/look?number=3", token="")
        assert events == []
        body = {"text": "t" * 300, "words": ["one\nline"], "code": "hidden"}
        agent = {"User-Agent": "curl/8 " + "x" * 300}
        assert (await ask(server, "PUT", "/things/7", agent, body)).status == 200
        assert (await ask(server, "DELETE", "/change?number=99")).status == 400
        assert (await ask(server, "PUT", "/fail/missing", body={})).status == 404
        assert (await ask(server, "PUT", "/fail/bug", body={})).status == 500
        large = b"x" * (OPTIONS.max_body_bytes + 1)
        assert (await ask(server, "PUT", "/change", JSON, large)).status == 413
        assert (await ask(server, "PUT", "/change", JSON, b"[]")).status == 400
        assert server.audit.allowed == 6
        assert server.audit.refused_count == 0
    first, *others = [one for one in events if one["event"] == "http_change"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", first.pop("peer"))
    assert first == {
        "event": "http_change",
        "method": "PUT",
        "route": "/things/{thing}",
        "parameters": {
            "thing": "7", "text": "t" * 200 + "…", "words": ["one\nline"], "code": "(secret)",
        },
        "token": "valid",
        "user_agent": agent["User-Agent"][:200],
        "status": 200,
    }  # fmt: skip
    assert [(one["method"], one["parameters"], one["status"]) for one in others] == [
        ("DELETE", {"number": "99"}, 400), ("PUT", {"how": "missing"}, 404),
        ("PUT", {"how": "bug"}, 500), ("PUT", {}, 413), ("PUT", {}, 400),
    ]  # fmt: skip
    assert TOKEN not in str(events)
    assert "hidden" not in str(events)


async def test_a_change_that_is_cut_off_is_logged() -> None:
    """It is unknown whether the change took effect."""
    events: list[dict[str, Any]] = []
    options = replace(OPTIONS, request_timeout_s=0.1)
    async with serving(options, events) as (server, _):
        assert (await ask(server, "PUT", "/fail/never-ends", body={})).status == 504
    [event] = events
    assert (event["event"], event["status"]) == ("http_change", 504)


async def test_each_refused_change_is_logged_with_the_reason() -> None:
    events: list[dict[str, Any]] = []
    async with serving(OPTIONS, events) as (server, world):
        await ask(server, "DELETE", "/change?number=7&token=" + TOKEN, token="")
        await ask(server, "PUT", "/change", body={"number": 1}, token=f"{TOKEN}x")
        await ask(server, "POST", "/press", {"Origin": "http://evil.example"})
        await ask(server, "POST", "/press", {"Host": "evil.example"})
        assert world.changed == []
        assert server.audit.refused_count == 4
    assert {one["event"] for one in events} == {"http_change_refused"}
    assert [(one["route"], one["parameters"], one["token"], one["status"]) for one in events] == [
        ("/change", {"number": "7"}, "none", 401), ("/change", {}, "wrong", 401),
        ("/press", {}, "valid", 403), ("/press", {}, "valid", 403),
    ]  # fmt: skip
    assert "another site" in events[2]["why"]
    assert TOKEN not in str(events)


async def test_refusals_cannot_fill_the_log() -> None:
    events: list[dict[str, Any]] = []
    audit = ChangeAudit(lambda event, **fields: events.append({"event": event, **fields}), 0.01)
    attempt = Attempt(World().routes()[4], "127.0.0.1:7", "curl", "none")
    why = RefusedRequest(401, "no token", "Send it")

    async def summary() -> None:
        while events[-1]["event"] != "http_refusals_left_out":
            await asyncio.sleep(0.001)

    for _ in range(2):
        events.clear()
        for _ in range(1_000):
            audit.refused(attempt, why)
        assert len(events) == REFUSED_EVENTS_MAX
        await summary()
        assert events.pop()["count"] == 1_000 - REFUSED_EVENTS_MAX
    for _ in range(1_000):
        audit.refused(attempt, why)
    audit.close()
    assert events[-1]["count"] == 1_000 - REFUSED_EVENTS_MAX
    assert audit.refused_count == 3_000


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PATCH", "POST", "FOO"])
async def test_requests_with_another_method_change_nothing(method: str) -> None:
    async with serving() as (server, world):
        answer = await ask(server, method, "/change?number=1")
        assert answer.status in (400, 405)
        assert world.changed == []


@pytest.mark.parametrize(
    "target",
    [
        "/../../etc/passwd",
        "/look/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/things/..%2f..%2fetc%2fpasswd",
        "/things/%00",
        "//etc/passwd",
        "/things/7/../../change",
        "\\..\\etc\\passwd",
    ],
)
async def test_path_traversal_is_not_found(target: str) -> None:
    async with serving() as (server, _):
        answer = await ask(server, "GET", target)
        assert answer.status in (400, 404, 405)
        assert b"root:" not in answer.body


async def test_an_absolute_target_does_not_replace_the_host_header() -> None:
    async with serving() as (server, _):
        answer = await ask(server, "GET", "http://evil.example/look", {"Host": "evil.example"})
        assert answer.status in (400, 403, 404)


BAD_BODIES = [
    b"{",
    b"[]",
    b"7",
    b'"number"',
    b'{"number": 0}',
    b'{"number": 10}',
    b'{"number": 1.5}',
    b'{"number": true}',
    b'{"number": null}',
    b'{"number": "one"}',
    b'{"number": "99999999999999999999999"}',
    b'{"nummer": 1}',
    b'{"number": 1, "more": 1}',
    b"{}",
    b"\xff\xfe",
    b"[" * 30_000,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:20]))
async def test_an_invalid_body_is_refused(body: bytes) -> None:
    async with serving() as (server, world):
        answer = await ask(server, "PUT", "/change", JSON, body)
        assert answer.status == 400
        assert answer.what
        assert world.changed == []


@pytest.mark.parametrize(
    ("headers", "status", "told"),
    [
        (b"Host: \xff\xfe\r\nContent-Length: 2\r\n", 403,
         "this server does not accept the host name \udcff\udcfe"),
        (b"Host: HERE\r\nContent-Type: \xff\r\nContent-Length: 2\r\n", 415,
         "the content type of the body is \udcff, not application/json"),
    ],
)  # fmt: skip
async def test_headers_that_are_not_utf8_are_refused_like_others(
    caplog: pytest.LogCaptureFixture, headers: bytes, status: int, told: str
) -> None:
    """The server had no answer for them, and its log got a traceback for each."""
    events: list[dict[str, Any]] = []
    async with serving(events=events) as (server, world):
        given = headers.replace(b"HERE", f"127.0.0.1:{server.port}".encode())
        shown = f"Authorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n".encode()
        answer = parsed(await raw(server, b"PUT /change HTTP/1.1\r\n" + given + shown + b"{}"))
        assert (answer.status, answer.what) == (status, told)
        assert not world.changed
    assert [one["event"] for one in events] == ["http_change_refused"]
    assert not caplog.records


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /\0 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET http://[::1/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_requests_that_are_not_http_cannot_fill_the_log(
    caplog: pytest.LogCaptureFixture, request_bytes: bytes
) -> None:
    """Each was an error with a traceback, and needed no token."""
    async with serving() as (server, _):
        answer = await raw(server, request_bytes)
        assert answer.startswith(b"HTTP/1.0 400 ")
        assert server.refused == 1
    assert not caplog.records


async def test_a_body_that_cannot_be_decoded_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    events: list[dict[str, Any]] = []
    async with serving(events=events) as (server, world):
        packed = {**JSON, "Content-Encoding": "gzip"}
        answer = await ask(server, "PUT", "/change", packed, b'{"number": 1}')
        assert (answer.status, answer.what) == (
            400, "the body cannot be decoded, or ends too early",
        )  # fmt: skip
        assert not world.changed
    assert [one["status"] for one in events] == [400]
    assert not caplog.records


async def test_a_client_that_disconnects_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    events: list[dict[str, Any]] = []
    async with serving(events=events) as (server, _):
        head = f"PUT /change HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        head += f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{head}Content-Length: 9\r\nExpect: 100-continue\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 100 ")  # it waits for the body
        writer.close()
        await until(lambda: len(events) == 1, "the change is logged")
    assert events[0]["status"] is None
    assert not caplog.records


async def test_an_incomplete_character_is_refused() -> None:
    async with serving() as (server, world):
        for body in (b'{"text": "a\\ud800"}', b'{"words": ["a", "\\udfff"]}'):
            answer = await ask(server, "PUT", "/things/1", JSON, body)
            assert answer.status == 400
            assert "without parts of characters" in answer.what
        assert not world.changed


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_an_answer_that_is_not_json_is_reported_as_a_bug(
    caplog: pytest.LogCaptureFixture, method: Literal["GET", "PUT"]
) -> None:
    """The client got no JSON, and a change did not say that its outcome is unknown."""

    async def infinite(call: Call) -> Any:
        return {"rate": float("inf")}

    events: list[dict[str, Any]] = []
    route = Route(method, "/infinite", "Infinite", infinite)
    async with serving(events=events, routes=[route]) as (server, _):
        error = (await ask(server, method, "/infinite", JSON)).json["error"]
        assert (error["status"], error["outcome_known"]) == (500, method == "GET")
        assert server.failed == 1
    assert events[0]["event"] == "http_failed"
    assert not caplog.records


async def test_an_unknown_field_is_named_with_the_nearest_known_one() -> None:
    async with serving() as (server, _):
        answer = await ask(server, "GET", "/look?nmber=3")
        assert answer.json["error"]["remedy"] == "Did you mean number?"
        for query in ("number=0", "number=", "kind=rx", "number=1&number=2", "number=+1", "x=1"):
            assert (await ask(server, "GET", f"/look?{query}")).status == 400, query
        assert (await ask(server, "GET", "/look", JSON, b'{"a": 1}')).status == 400


async def test_a_body_that_is_too_large_is_refused() -> None:
    options = replace(OPTIONS, max_body_bytes=1_000)
    async with serving(options) as (server, world):
        large = b'{"number": 1' + b" " * 1_000 + b"}"
        assert (await ask(server, "PUT", "/change", JSON, large)).status == 413
        head = (
            "PUT /change HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {TOKEN}\r\n"
        )
        chunk = b"400\r\n" + b" " * 0x400 + b"\r\n"
        chunked = head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 2 + b"0\r\n\r\n"
        assert parsed(await raw(server, chunked)).status == 413
        both = head.encode() + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        assert parsed(await raw(server, both)).status == 400  # smuggling
        assert world.changed == []


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with serving() as (server, _):
        assert (await ask(server, "GET", "/look", {"X": "x" * 20_000})).status == 400
        assert (await ask(server, "GET", "/look?kind=" + "x" * 20_000)).status in (400, 414)


# -- slow ones --------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"", b"GET /look HT", b"GET /look HTTP/1.1\r\nHost: x\r\n"])
async def test_an_unfinished_head_times_out(begun: bytes) -> None:
    async with serving(replace(OPTIONS, head_timeout_s=0.1)) as (server, _):
        try:
            assert await raw(server, begun) == b""
        except ConnectionResetError:
            pass
        assert not server.connections


async def test_a_missing_body_times_out() -> None:
    async with serving(replace(OPTIONS, body_timeout_s=0.1)) as (server, world):
        begun = (
            b"PUT /change HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: 13\r\n\r\n{" % TOKEN.encode()
        )
        assert parsed(await raw(server, begun)).status == 408
        assert world.changed == []


async def test_an_answer_that_the_client_does_not_read_times_out() -> None:
    async with serving(replace(OPTIONS, head_timeout_s=0.2)) as (server, _):
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.sendall(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            while not server.requests:
                await asyncio.sleep(0)
            while server.connections:
                await asyncio.sleep(0.01)


async def test_an_answer_that_is_read_slowly_is_sent_completely() -> None:
    async with serving(replace(OPTIONS, head_timeout_s=0.1)) as (server, world):
        asked = asyncio.create_task(ask(server, "GET", "/wait"))
        await world.begun.wait()
        asyncio.get_running_loop().call_later(0.3, world.go.set)
        assert (await asked).json == "waited"


async def test_a_request_without_an_answer_times_out() -> None:
    async with serving(replace(OPTIONS, request_timeout_s=0.1)) as (server, _):
        answer = await ask(server, "GET", "/wait")
        assert answer.status == 504
        assert answer.json["error"]["outcome_known"] is True


async def test_requests_and_connections_are_limited() -> None:
    options = replace(OPTIONS, max_requests=1, max_connections=2)
    async with serving(options) as (server, world):
        first = asyncio.create_task(ask(server, "GET", "/wait"))
        await world.begun.wait()
        busy = await ask(server, "GET", "/look")
        assert busy.status == 503
        assert busy.headers["Retry-After"] == "1"
        silent, idle = await asyncio.open_connection("127.0.0.1", server.port)
        while len(server.connections) < 2:
            await asyncio.sleep(0)
        # It makes room for a client with a request.
        assert (await ask(server, "GET", "/look")).status == 503
        assert await silent.read() == b""
        assert (server.displaced, server.turned_away) == (1, 0)
        idle.close()
        world.go.set()
        assert (await first).json == "waited"
        while server.connections:
            await asyncio.sleep(0)
        assert (await ask(server, "GET", "/look")).status == 200


async def test_a_server_at_its_connection_limit_answers_503() -> None:
    async with serving(replace(OPTIONS, max_connections=1)) as (server, world):
        first = asyncio.create_task(ask(server, "GET", "/wait"))
        await world.begun.wait()
        full = await ask(server, "GET", "/look")
        assert full.status == 503
        assert "limit of connections" in full.json["error"]["what"]
        assert server.turned_away == 1
        world.go.set()
        assert (await first).json == "waited"


async def test_unread_answers_are_limited() -> None:
    async with serving(replace(OPTIONS, max_answer_bytes=1)) as (server, _):
        assert (await ask(server, "GET", "/look")).status == 200  # one always passes
        stuck = cast(Any, SimpleNamespace(unsent_bytes=10, abort=lambda: None))
        transport = asyncio.Transport()
        server.connections[transport] = stuck
        answer = await ask(server, "GET", "/look")
        assert answer.status == 503
        assert "have not received 10 bytes" in answer.json["error"]["what"]
        del server.connections[transport]


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "status"),
    [("missing", 404), ("usage", 400), ("store", 503), ("never", 501), ("bug", 500)],
)
async def test_an_error_states_the_cause_and_the_remedy(how: str, status: int) -> None:
    async with serving() as (server, _):
        answer = await ask(server, "GET", f"/fail/{how}")
        assert answer.status == answer.json["error"]["status"] == status
        assert b"secret" not in answer.body
        if how == "store":
            assert answer.json["error"]["causes"] == {"zk:1": "refused"}
            assert answer.json["error"]["outcome_known"] is False
        assert (await ask(server, "GET", "/look")).status == 200


async def test_a_change_that_failed_unexpectedly_has_an_unknown_outcome() -> None:
    async with serving() as (server, _):
        answer = await ask(server, "PUT", "/fail/bug", body={})
        assert (answer.status, answer.json["error"]["outcome_known"]) == (500, False)


# -- where it listens -------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", "bookie7"])
def test_a_server_outside_loopback_needs_a_token_and_tls(host: str) -> None:
    def make(**more: Any) -> None:
        options = HttpOptions(host=host, **more)
        HttpServer(
            Api("x"), options, version="1", monotonic=lambda: 0.0, log=lambda event, **fields: None
        )

    tls = TlsServerConfig("/missing.pem")
    with pytest.raises(StartError, match="no token"):
        make(tls=tls)
    with pytest.raises(StartError, match="clear text"):
        make(token=TOKEN)
    with pytest.raises(StartError, match="reading needs the token too"):
        make(token=TOKEN, tls=tls, reads_open=True)
    if host in ("0.0.0.0", "::"):
        with pytest.raises(StartError, match="--http-name"):
            make(token=TOKEN, tls=tls)


def test_loopback_addresses_are_recognized() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(map(is_loopback, ["localhost.evil.example", "128.0.0.1", "", "::", "0.0.0.0"]))


def test_a_short_token_is_refused() -> None:
    assert check_token(f"{TOKEN}\n", "f") == TOKEN
    for text in ("", "short", "x" * (TOKEN_MIN - 1), "with spaces in the middle", "é" * 20):
        with pytest.raises(UsageError, match="does not contain a token"):
            check_token(text, "f")


async def test_the_server_serves_tls_and_reloads_its_certificate(tmp_path: Path) -> None:
    """The certificate is followed when it changes."""
    authority = Authority(tmp_path)
    own = authority.issue("bookie")
    tls = TlsServerConfig(own.certificate, own.private_key, reload_check_s=0.0)
    options = replace(PROTECTED, tls=tls)
    context = ssl.create_default_context(cafile=authority.ca)
    async with serving(options) as (server, _):
        assert server.url.startswith("https://")
        assert (await ask(server, "GET", "/look", context=context)).status == 200
        assert (await ask(server, "GET", "/look", token="", context=context)).status == 401
        plain = await raw(server, b"GET /look HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" not in plain[:20]
        other = Authority(tmp_path, "other")
        assert other.issue("bookie") == own  # the files are replaced
        trusting = ssl.create_default_context(cafile=other.ca)
        assert (await ask(server, "GET", "/look", context=trusting)).status == 200


async def test_a_port_in_use_is_reported_in_one_line() -> None:
    async with serving() as (server, _):
        with pytest.raises(StartError, match="the port is in use"):
            async with serving(replace(OPTIONS, port=server.port)):
                pass


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": None},
        {"port": "8080"},
        {"port": 65_536},
        {"token": b"a token that is not text"},
        {"tls": True},
        {"names": "one.example"},
        {"max_requests": -1},
        {"head_timeout_s": float("nan")},
    ],
)
def test_options_of_the_wrong_type_are_refused_at_once(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(UsageError, match=f"HttpOptions.{name} cannot") as caught:
        HttpOptions(**wrong)
    assert "a token that is not text" not in str(caught.value)
