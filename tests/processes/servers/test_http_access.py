"""An account without the token changes nothing over HTTP, and reads nothing that is protected.

Each route of the OpenAPI document of each kind of server is tried over plain sockets.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import urllib.parse
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quire.blocking import connect
from quire.testing._process import quire_command
from quire.testing.cluster import LocalCluster
from tests.support.processes.cli import Quire, Running
from tests.support.processes.http import TOKEN, WAIT_S, Http, url_in
from tests.support.waiting import wait_for

BOOKIES = 3
OTHER_ACCOUNT = 65_534
"""The user and group id of `nobody`. Only root can take it, so other users leave that test out."""
TABLES = ("cluster", "ledgers", "cookies", '"values"', "bookies", "tree")
"""The tables of the metadata file, without the sessions of processes."""
NAMESPACE = "/access"
TOPIC = "visits"
MARKS = ("/quire-collection-marks", "/quire-directories/")
"""Nodes that bookies write by themselves from time to time."""
OPEN = {"/heartbeat", "/api/v1/bookie/is_ready"}
"""The routes that docs/reference/http.md names as open."""

READ = "/api/v1/ledger/read"
"""Apache's route that returns entries."""
SECRET = "do not show me"

NOTHING: dict[str, str] = {}
STRANGERS = [
    NOTHING,
    {"Authorization": "Bearer 0123456789abcdef"},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": "Bearer"},
    {"Cookie": f"token={TOKEN}"},
    {"X-Token": TOKEN},
]
"""The headers of requests without the token."""


@dataclass
class Server:
    """A server, by the options that it was started with."""

    url: str
    document: dict[str, Any]
    refused: int
    """The status of a change without the token."""

    def routes(self, *, changes: bool) -> list[tuple[str, str, dict[str, Any]]]:
        methods = ("put", "delete") if changes else ("get",)
        return [one for one in self._routes() if one[0].lower() in methods]

    def payloads(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the routes that return what users have stored."""
        return [one for one in self._routes() if one[0] == "POST" or one[1] == READ]

    def _routes(self) -> list[tuple[str, str, dict[str, Any]]]:
        return [
            (method.upper(), path, operation)
            for path, operations in self.document["paths"].items()
            for method, operation in operations.items()
        ]


@dataclass
class Place:
    """A cluster with something to lose, and its servers."""

    cluster: LocalCluster
    ledger: int
    servers: dict[str, Server]

    def values(self) -> dict[str, Any]:
        """Return a value for each field with which the requests could do the most."""
        bookie = self.cluster.bookies[0].id
        return {
            "ledger_id": self.ledger, "force": True, "enabled": False, "bookie_src": bookie,
            "delete_cookie": True, "delay_seconds": 7, "readOnly": True, "forceMajor": True,
            "forceMinor": True, "suspendMajor": True, "suspendMinor": True, "by": "stranger",
            "resumeMajor": True, "resumeMinor": True, "kind": "decommission", "target": bookie,
            "job_id": 1, "bookie_id": bookie, "max_bytes": 1, "bookie_dest": [bookie],
            "entry_id": 0, "namespace": NAMESPACE, "name": "orders",
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return everything that a request could change."""
        with sqlite3.connect(self.cluster.directory / "metadata.db") as store:
            found: dict[str, Any] = {
                table: store.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES
            }
        store.close()
        found["tree"] = [row for row in found["tree"] if not any(mark in row[0] for mark in MARKS)]
        for bookie in self.cluster.bookies:
            http = Http(url_in(bookie.log_path))
            for path in ("state", "gc", "gc_details", "gc/suspend_compaction"):
                found[f"{bookie.id} {path}"] = http.get(f"/api/v1/bookie/{path}")
            found[f"{bookie.id} jobs"] = http.get("/api/v1/quire/jobs")
        return found


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    arguments = ["--http", "127.0.0.1:0", "--set", "min_free_bytes=0"]
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(BOOKIES, bookie_args=arguments, http_token=TOKEN)
        )
        with connect(cluster.uri) as client, client.create_ledger() as writer:
            writer.append(SECRET.encode())
            ledger = writer.ledger_id
        with (
            connect(cluster.uri) as client,
            client.namespace(NAMESPACE, create=True) as streams,
            streams.open_writer("orders", create=True) as records,
        ):
            records.append(SECRET.encode())
            with streams.open_writer(f"{TOPIC}/0", create=True) as partition:
                partition.append(SECRET.encode())
            streams.create_topic(TOPIC, 1, adopt=True)
        file = str(cluster.token_file)

        def running(*options: str) -> str:
            command: Running = Quire(cluster.uri).start("ui", "--http", "127.0.0.1:0", *options)
            return stack.enter_context(command).line()

        urls = {
            "bookie": (url_in(cluster.bookies[0].log_path), 401),
            "no token": (running(), 403),
            "read-only": (running("--http-read-only"), 403),
            "protected": (running("--http-token-file", file), 401),
            "protected by an option": (
                running("--http-token-file", file, "--http-reads", "token"), 401),
            "no payloads": (running("--http-token-file", file, "--http-no-payloads"), 401),
        }  # fmt: skip
        servers = {
            name: Server(url, Http(url, TOKEN).get("/api/v1/openapi.json"), refused)
            for name, (url, refused) in urls.items()
        }
        yield Place(cluster, ledger, servers)


def send(
    url: str, method: str, target: str, headers: dict[str, str], body: bytes = b""
) -> tuple[int, str]:
    """Send a request over a socket of its own, and return the status and the rest of the answer."""
    host, port = url.removeprefix("http://").split(":")
    fields = {"Host": f"{host}:{port}", "Connection": "close", **headers}
    if body:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as peer:
        peer.sendall(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
        got = b""
        while more := peer.recv(65_536):
            got += more
    first, _, rest = got.decode().partition("\r\n")
    return int(first.split()[1]), rest


def request_of(place: Place, path: str, operation: dict[str, Any]) -> tuple[str, bytes]:
    """Return the target and the body of a valid request of a route."""
    values = place.values()
    if "/topic" in path:
        values["name"] = TOPIC
    query = {}
    for one in operation.get("parameters", ()):
        if one["in"] == "path":
            path = path.replace(f"{{{one['name']}}}", str(values[one["name"]]))
        elif one["name"] in values:
            query[one["name"]] = json.dumps(values[one["name"]]).strip('"')
    body: dict[str, Any] = {}
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for name, kind in schema["properties"].items():
            if name not in values and name not in schema["required"]:
                continue
            value = values[name]
            listed = kind.get("type") == "array" and not isinstance(value, list)
            body[name] = [value] if listed else value
    target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
    return target, json.dumps(body).encode() if body else b""


def spellings(target: str) -> list[str]:
    """Return other ways to write a target, in the hope that one of them is not checked."""
    path, mark, query = target.partition("?")
    more = f"{mark}{query}"
    return [
        f"{path}/{more}", f"/{path}{more}", path.replace("/api/", "/%61pi/") + more,
        path.replace("/api/", "/x/../api/") + more, f"{path}{more or '?'}#", path.upper() + more,
        f"{path}{more}{'&' if more else '?'}token={TOKEN}",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["bookie", "no token", "read-only", "protected"])
def test_without_the_token_no_route_changes_anything(place: Place, name: str) -> None:
    server = place.servers[name]
    changing = server.routes(changes=True)
    assert len(changing) >= (16 if name == "bookie" else 9)
    before = place.state()
    for method, path, operation in changing:
        assert operation["security"] == [{"token": []}], path
        target, body = request_of(place, path, operation)
        for headers in STRANGERS:
            assert send(server.url, method, target, headers, body)[0] == server.refused, target
        for other in spellings(target):
            status, _ = send(server.url, method, other, NOTHING, body)
            assert status in (server.refused, 400, 404), other
        for other in ("GET", "HEAD", "POST", "PATCH", "OPTIONS"):
            known = server.document["paths"][path]
            if ("get" if other == "HEAD" else other.lower()) in known:
                continue
            instead = {"X-HTTP-Method-Override": method}
            assert send(server.url, other, target, instead, body)[0] in (405, 404), (other, target)
    assert place.state() == before


def test_read_routes_change_nothing(place: Place) -> None:
    server = place.servers["bookie"]
    before = place.state()
    for method, path, operation in server.routes(changes=False):
        target, _ = request_of(place, path, operation)
        for verb in (method, "HEAD"):
            assert send(server.url, verb, target, {"X-HTTP-Method-Override": "DELETE"})[0] < 500
    assert place.state() == before


@pytest.mark.parametrize("name", ["protected", "protected by an option"])
def test_protected_reads_need_the_token(place: Place, name: str) -> None:
    server = place.servers[name]
    reading = server.routes(changes=False)
    assert len(reading) >= 25
    answered = set()
    for method, path, operation in reading:
        target, _ = request_of(place, path, operation)
        for headers in STRANGERS:
            status, _ = send(server.url, method, target, headers)
            if status != 401:
                answered.add(path)
                assert (status, "security" in operation) == (200, False), (path, status)
        for other in spellings(target):
            status, rest = send(server.url, method, other, NOTHING)
            assert status in (401, 400, 404) or path in OPEN, other
            assert SECRET not in rest
        assert send(server.url, "HEAD", target, NOTHING)[0] == (200 if path in OPEN else 401)
    assert answered == OPEN & {path for _, path, _ in reading}


def shows(rest: str) -> bool:
    return SECRET in rest or b64encode(SECRET.encode()).decode() in rest


@pytest.mark.parametrize("name", ["bookie", "no token", "read-only", "protected", "no payloads"])
def test_payloads_always_need_the_token(place: Place, name: str) -> None:
    """Also where reading needs none, and nobody sees them where they are switched off."""
    server = place.servers[name]
    routes = server.payloads()
    assert len(routes) == 5
    refused = {"no token": 403, "read-only": 403, "no payloads": 403}.get(name, 401)
    for method, path, operation in routes:
        assert operation["security"] == [{"token": []}], path
        target, body = request_of(place, path, operation)
        for headers in STRANGERS:
            status, rest = send(server.url, method, target, headers, body)
            assert (status, shows(rest)) == (refused, False), target
        for other in spellings(target):
            status, rest = send(server.url, method, other, NOTHING, body)
            assert status in (refused, 400, 404), other
            assert not shows(rest)
        known = {"Authorization": f"Bearer {TOKEN}"}
        status, rest = send(server.url, method, target, known, body)
        assert (status, shows(rest)) == ((403, False) if refused == 403 else (200, True)), rest
        form = {**known, "Content-Type": "text/plain", "Content-Length": str(len(body))}
        if body:
            head = send(server.url, method, target, {**form, "Origin": "http://evil.example"})
            assert head[0] == 403


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_another_account_does_not_find_the_token(place: Place) -> None:
    """The token is in no file that it can read, and on no command line and in no environment."""

    def holding(text: str, user: int) -> set[str]:
        """Return the names of the files in which this user finds the text."""
        lines = [str(one) for one in Path("/proc").glob("[0-9]*/cmdline")]
        lines += [str(one) for one in Path("/proc").glob("[0-9]*/environ")]
        done = subprocess.run(
            ["grep", "-rsalF", "-f", "-", str(place.cluster.directory), *lines],
            input=text, capture_output=True, text=True, timeout=WAIT_S, check=False,
            user=user, group=user, extra_groups=[],
        )  # fmt: skip
        return {Path(line).name for line in done.stdout.splitlines()}

    os.chmod(place.cluster.directory, 0o755)  # as that of --dir may be
    assert "bookie-1.log" in holding("http_serving", OTHER_ACCOUNT)
    assert holding(TOKEN, 0) == {place.cluster.token_file.name}
    assert holding(TOKEN, OTHER_ACCOUNT) == set()


@pytest.mark.parametrize("command", ["http", "ui"])
def test_a_terminal_shows_a_token_and_a_log_does_not(
    place: Place, command: str, tmp_path: Path
) -> None:
    words = quire_command(command, "--metadata", place.cluster.uri, "--http", "127.0.0.1:0")
    delay = "/api/v1/autorecovery/lost_bookie_recovery_delay"

    @contextmanager
    def running(errors: int) -> Iterator[Http]:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            try:
                assert process.stdout is not None
                yield Http(process.stdout.readline().strip())
            finally:
                process.terminate()
            assert process.wait(WAIT_S) == 0

    log = tmp_path / "log"
    with log.open("w") as file, running(file.fileno()) as http:
        status, said = http("PUT", delay, {"delay_seconds": 0})
        assert (status, "--http-token-file" in said["error"]["remedy"]) == (403, True)
        assert http("GET", delay)[0] == 200
    assert "#/?token" not in log.read_text()
    terminal, other_end = pty.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as shown, running(other_end) as http:
        text = b""
        while b"token=" not in text or not text.endswith(b"\n"):
            text += shown.read(4_096)
        found = re.search(rf"open {re.escape(http.url)}/#/\?token=(\S+)", text.decode())
        assert found, text
        known = {"Authorization": f"Bearer {found[1]}"}
        assert http("PUT", delay, {"delay_seconds": 0})[0] == 401
        assert http("PUT", delay, {"delay_seconds": 0}, known) == (200, {"delay_seconds": 0})
        assert http("GET", delay)[0] == 200
    os.close(other_end)


def test_a_local_cluster_has_one_token_for_all_of_its_servers(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    words = ("local", "--bookies", "1", "--dir", str(directory), "--ui", "127.0.0.1:0")
    file = directory / "http-token"
    with Quire().start(*words) as local:
        local.line()
        said = [local.error_line()]
        while not said[-1].startswith(("Changes over HTTP", "stopped")):
            said.append(local.error_line())
        assert said[-1] == f"Changes over HTTP need the token in {file}"
        [dashboard] = [one.removeprefix("Dashboard: ") for one in said if "Dashboard: " in one]
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert token not in "".join(said)
        for url in (dashboard, url_in(directory / "bookie-1.log")):
            audit = "/api/v1/autorecovery/trigger_audit"
            assert Http(url)("PUT", audit)[0] == 401
            assert Http(url, token)("PUT", audit)[0] == 200
            assert Http(url)("GET", "/metrics")[0] == 200
        local.end(signal.SIGTERM).ok()
    assert not file.exists()


def test_with_the_token_each_route_makes_its_change(place: Place) -> None:
    """So the requests of the other tests were refused for lack of the token, and nothing else.

    This test comes last, because it deletes and switches off.
    """
    server = place.servers["bookie"]
    known = {"Authorization": f"Bearer {TOKEN}"}
    before = place.state()
    for method, path, operation in server.routes(changes=True):
        target, body = request_of(place, path, operation)
        status, rest = send(server.url, method, target, known, body)
        assert status in (200, 202, 404, 501), (path, rest)
        assert (status == 501) == operation["summary"].startswith("Not offered"), path
        assert status != 404 or path == "/api/v1/quire/jobs/{job_id}", path
    after = place.state()
    assert after["tree"] != before["tree"]
    assert after["ledgers"] != before["ledgers"]
    log = place.cluster.bookies[0].log_path
    events = [json.loads(line) for line in log.read_text().splitlines() if '"http_' in line]
    changes = [one for one in events if one["event"] == "http_change"]
    assert len(changes) == len(server.routes(changes=True))
    assert all(one["token"] == "valid" for one in changes)
    assert any(one["event"] == "http_change_refused" for one in events)
    assert TOKEN not in log.read_text()
    wait_for(lambda: "quire_http_changes_refused_total" in Http(server.url).get("/metrics"))
