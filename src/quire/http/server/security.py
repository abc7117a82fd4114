"""The access rules of the HTTP server.

They are checked before the body of a request is read:

| check | protects against | status if it fails |
|---|---|---|
| `Host` is a name of this server | DNS rebinding: a page whose host name resolves to us | 403 |
| the server changes anything at all | changes, if it is read-only or has no token | 403 |
| the server shows payloads at all | reading payloads from a server without a token | 403 |
| the token, compared in constant time | everybody without the token | 401 |
| `Origin` and `Sec-Fetch-Site` of requests for changes and payloads | pages of other sites | 403 |
| `Sec-Fetch-Site` of other requests, but for links that are opened | work for such pages | 403 |
| the body is JSON | forms, which browsers send to other sites without asking | 415 |

There are no CORS headers, so no page of another site can read an answer. No GET request changes
anything.

A request that changes something always needs the token, also on loopback, where every account of
the machine can connect. Reading needs it unless `HttpOptions.reads_open` is set or there is none.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from quire._runtime.limits import Limits
from quire._runtime.units import host_port
from quire.config import CheckedSettings, TlsServerConfig
from quire.errors import StartError, UsageError

TOKEN_MIN = 16
"""The smallest number of characters of a token, so that nobody can guess it."""
TOKEN_MAX = 4_096
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
NO_PAYLOADS = "shows no payloads"
ANY_ADDRESS = ("0.0.0.0", "::")
FOREIGN_SITES = ("cross-site", "same-site")
"""The values of `Sec-Fetch-Site` with which browsers mark requests of pages of other sites."""

_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")
"""A host name or an address."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
Headers = Mapping[str, Sequence[str]]
"""The values of each header of a request, by lower-case name."""

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class HttpOptions(CheckedSettings):
    """The address, the access rules and the limits of an HTTP server."""

    host: str = "127.0.0.1"
    port: Annotated[int, Limits(0, 65_535)] = 0
    """The port to listen on. 0 means any free port."""
    token: str = field(default="", repr=False)
    """The token that requests must send as `Authorization: Bearer TOKEN`. It may be empty only on
    loopback. Then everybody who can reach the port may read, and nobody may change anything."""
    reads_open: bool = False
    """Whether requests that change nothing are answered without the token. It may be set only on
    loopback."""
    read_only: bool = False
    """Whether every request that would change something is refused, with or without the token."""
    tls: TlsServerConfig | None = None
    names: tuple[str, ...] = ()
    """Host names, besides `host`, that requests may use for this server."""
    payloads: bool = True
    """Whether the routes that return what users have stored are answered. They need the token."""
    bookies_token: str = field(default="", repr=False)
    """The token that is sent to bookies to read their metrics. Empty means that none is sent."""
    prometheus: str = ""
    """The URL of a Prometheus server that scrapes the cluster. Charts of more than an hour are read
    from it. Empty means that there is none."""
    prometheus_labels: Mapping[str, str] = field(default_factory=dict)
    """The names and values of labels that all metrics of this cluster have in Prometheus."""
    max_body_bytes: int = 64 * 1024
    max_head_bytes: int = 8 * 1024
    """The size limit in bytes of the request line and of each header field."""
    head_timeout_s: float = 10.0
    """Seconds for the head of a request to arrive, from the connection or the previous answer."""
    body_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    """Seconds to handle a request, from its last byte until the answer is ready."""
    max_connections: int = 128
    """The number of connections that the server keeps at once. To admit another one, it closes a
    connection that never completed a request, or else one that is between two requests. If there is
    none, it answers the new connection with status 503."""
    max_answer_bytes: int = 64 * 1024 * 1024
    """The largest number of bytes of answers that clients have not received yet, over all
    connections. An answer that would exceed it is replaced by status 503, unless it is the only
    one."""
    max_requests: int = 32
    """The number of requests that are handled at once. Others are answered with status 503."""

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def scheme(self) -> str:
        return "https" if self.tls is not None else "http"

    def needs_token(self, *, changes: bool, open: bool, payloads: bool = False) -> bool:
        """Return whether a route needs the token (see `Route.changes`, `open` and `payloads`)."""
        reads = bool(self.token) and not self.reads_open
        return not open and (changes or payloads or reads)


TokenGiven = Literal["valid", "wrong", "none"]
"""The token of a request. If the server has no token, every token is wrong."""
Changes = Literal["allowed", "token-needed", "off", "read-only"]
"""The answer of a server to a client about changes: they are allowed, they need the token, the
server has no token, or it is read-only."""


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """The answer to a refused request: the HTTP status, the reason and the remedy."""

    status: int
    what: str
    remedy: str
    headers: tuple[tuple[str, str], ...] = ()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to another address at any time


def check_options(options: HttpOptions) -> None:
    """Check the options without reading a file or binding a port.

    Raises UsageError for impossible values, and StartError for settings that would give access to
    everybody.
    """
    for name in options.names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} (--http-name) is not a host name",
                remedy="Give the name without a scheme or a port",
            )
    where = host_port(options.host, options.port)
    if options.loopback:
        return
    if not options.token:
        raise StartError(
            f"the HTTP server at {where} can be reached from other machines, but no token is given",
            remedy="Give --http-token-file, or listen on 127.0.0.1",
        )
    if options.tls is None:
        raise StartError(
            f"the HTTP server at {where} would receive its token in clear text",
            remedy="Give --http-tls-cert, or listen on 127.0.0.1",
        )
    if options.reads_open:
        raise StartError(
            f"the HTTP server at {where} can be reached from other machines, so reading needs the "
            "token too",
            remedy="Leave out --http-reads open, or listen on 127.0.0.1",
        )
    if options.host in ANY_ADDRESS and not options.names:
        raise StartError(
            f"the HTTP server at {where} does not know under which host names clients reach it",
            remedy="Give each of them with --http-name HOST",
        )


def check_token(text: str, source: str) -> str:
    """Return the token in the text of a file, without the white space around it.

    `source` names the file in the error. Raises UsageError if the text is not a token.
    """
    token = text.strip()
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX or not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{source} does not contain a token of {TOKEN_MIN} to {TOKEN_MAX} letters, digits and "
            "-._~+/=",
            remedy="Generate one with: openssl rand -hex 32",
        )
    return token


class AccessGate:
    """The check that decides for each request, from its headers alone, whether it is refused."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._token = options.token.encode()
        own = [f"[{options.host}]" if ":" in options.host else options.host]
        loopback = LOOPBACK_NAMES if options.loopback else ()
        names = [name for name in (*own, *options.names) if name not in ANY_ADDRESS]
        self._names = {name.lower() for name in (*names, *loopback)}
        self._scheme = options.scheme

    def token_given(self, headers: Headers) -> TokenGiven:
        given = headers.get("authorization", ())
        if not given:
            return "none"
        return "valid" if self._token and self._knows_token(given) else "wrong"

    def changes(self, token: TokenGiven) -> Changes:
        """Return whether a client that shows this token may change something, or why it may not."""
        if self._options.read_only:
            return "read-only"
        if not self._token:
            return "off"
        return "allowed" if token == "valid" else "token-needed"

    def refusal(
        self,
        headers: Headers,
        token: TokenGiven,
        *,
        changes: bool,
        has_body: bool,
        open: bool,
        payloads: bool = False,
    ) -> RefusedRequest | None:
        """Return why a request is refused, or None if it is allowed.

        Args:
            headers: The values of each header, by lower-case name.
            token: The result of `token_given` for the request.
            changes: Whether the route changes something.
            has_body: Whether the request has a body.
            open: Whether the route answers without the token.
            payloads: Whether the answer contains what users have stored.
        """
        hosts = headers.get("host", ())
        named = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if named is None or named[1].lower() not in self._names:
            return RefusedRequest(
                403,
                f"this server does not accept the host name {', '.join(hosts)[:80] or '(none)'}",
                "Use the server's own name, or start it with --http-name for this name",
            )
        if changes and self._options.read_only:
            return RefusedRequest(
                403,
                "this server is read-only, so it changes nothing",
                "Use the commands of `quire`, or a server without --http-read-only",
            )
        if payloads and not self._options.payloads:
            return RefusedRequest(
                403,
                f"this server {NO_PAYLOADS}",
                "Use `quire ledger read` or `quire stream read`, or a server without "
                "--http-no-payloads",
            )
        if (changes or payloads) and not self._token:
            return RefusedRequest(
                403,
                f"this server has no token, so it {'changes nothing' if changes else NO_PAYLOADS}",
                "Start it with --http-token-file FILE, and send the token in FILE as the header "
                "Authorization: Bearer TOKEN",
            )
        if token != "valid" and self._options.needs_token(
            changes=changes, open=open, payloads=payloads
        ):
            return RefusedRequest(
                401,
                "the token is missing or wrong",
                "Send the header Authorization: Bearer TOKEN, with the token in the file of "
                "--http-token-file or in the address that the server showed in its terminal",
                (("WWW-Authenticate", "Bearer"),),
            )
        if changes or payloads:
            return self._refused_change(headers, hosts[0], has_body)
        return None if open else self._refused_read(headers)

    def _knows_token(self, given: Sequence[str]) -> bool:
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(" ")
        same = hmac.compare_digest(token.strip().encode("utf-8", "surrogateescape"), self._token)
        return same and scheme.lower() == "bearer"

    def _refused_read(self, headers: Headers) -> RefusedRequest | None:
        """Return the refusal of a read that a page of another site makes in the background.

        The page cannot see the answer, but to make it may cost much, such as reading a whole
        ledger from all of its bookies. A person may follow a link from another site.
        """
        foreign = any(site in FOREIGN_SITES for site in headers.get("sec-fetch-site", ()))
        if not foreign or headers.get("sec-fetch-dest", ()) == ["document"]:
            return None
        return RefusedRequest(
            403,
            "the request comes from a page of another site, for which this server does no work",
            "Use the pages of this server, or a program",
        )

    def _refused_change(self, headers: Headers, host: str, has_body: bool) -> RefusedRequest | None:
        origins = headers.get("origin", ())
        sites = headers.get("sec-fetch-site", ())
        foreign = any(origin.lower() != f"{self._scheme}://{host.lower()}" for origin in origins)
        if foreign or any(site not in ("same-origin", "none") for site in sites):
            return RefusedRequest(
                403,
                "the request comes from a page of another site, which may not change anything here",
                "Use the pages of this server, or a program",
            )
        kinds = headers.get("content-type", ())
        if has_body and [kind.partition(";")[0].strip().lower() for kind in kinds] != [
            "application/json"
        ]:
            return RefusedRequest(
                415,
                f"the content type of the body is {', '.join(kinds)[:80] or 'missing'}, not "
                "application/json",
                "Send JSON, with the header Content-Type: application/json",
            )
        return None
