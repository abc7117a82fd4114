"""Who may ask what over HTTP, decided before anything of a request but its head is looked at.

| check | against | answer |
|---|---|---|
| `Host` is a name of this server | DNS rebinding: a page whose name was pointed at us | 403 |
| the token, compared in constant time | everybody else | 401 |
| `Origin` and `Sec-Fetch-Site` of what changes something | a page of another site | 403 |
| a body is JSON | forms, for which browsers ask nobody | 415 |

There are no CORS headers, so that no other page reads an answer; and nothing is changed by GET.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire._runtime.units import host_port
from quire.config import TlsServerConfig
from quire.errors import StartError, UsageError

TOKEN_MIN = 16
"""Characters: one that can be guessed is none."""
TOKEN_MAX = 4_096
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
ANY_ADDRESS = ("0.0.0.0", "::")

_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")
"""A host name or an address."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Where to listen, whom to answer, and every bound."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    token: str = field(default="", repr=False)
    """Asked for in `Authorization: Bearer TOKEN`; '': only on loopback, and whoever reaches the
    port may do everything."""
    tls: TlsServerConfig | None = None
    names: tuple[str, ...] = ()
    """Further hosts that requests may name."""
    bookies_token: str = field(default="", repr=False)
    """Shown to bookies whose metrics are read; '': none."""
    max_body_bytes: int = 64 * 1024
    max_head_bytes: int = 8 * 1024
    """Of the first line, and of each header field."""
    head_timeout_s: float = 10.0
    """From a connection, or from an answer, until the head of the next request has come."""
    body_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    """From a whole request until its answer is known."""
    max_connections: int = 128
    """The number of connections that the server keeps at once. To admit another one it closes a
    connection that never completed a request, or else one that is between two requests. If there is
    none, it answers the new connection with status 503."""
    max_answer_bytes: int = 64 * 1024 * 1024
    """The bytes of answers of all connections that clients have not taken. Beyond it the server
    answers requests with status 503."""
    max_requests: int = 32
    """Worked on at once."""

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def scheme(self) -> str:
        return "https" if self.tls is not None else "http"


@dataclass(frozen=True, slots=True)
class RefusedRequest:
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
        return False  # a name may point anywhere, tomorrow


def check_options(options: HttpOptions) -> None:
    """Raise UsageError for impossible values, and StartError for settings that would give access to
    everybody. No file is read and no port is bound."""
    for name in options.names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a host name", remedy="Leave out the port and the scheme"
            )
    where = host_port(options.host, options.port)
    if options.loopback:
        return
    if not options.token:
        raise StartError(
            f"HTTP on {where} can be reached from other machines, and no token is given",
            remedy="Give --http-token-file, or listen on 127.0.0.1",
        )
    if options.tls is None:
        raise StartError(
            f"HTTP on {where} would send its token in clear text",
            remedy="Give --http-tls-cert, or listen on 127.0.0.1",
        )
    if options.host in ANY_ADDRESS and not options.names:
        raise StartError(
            f"HTTP on {where} does not know by which names it is called",
            remedy="Give each with --http-name HOST",
        )


def check_token(text: str, source: str) -> str:
    """The token in a file. `UsageError`."""
    token = text.strip()
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX or not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{source} holds no token: {TOKEN_MIN} to {TOKEN_MAX} letters, digits and -._~+/=",
            remedy="Make one: openssl rand -hex 32",
        )
    return token


class AccessGate:
    def __init__(self, options: HttpOptions) -> None:
        self._token = options.token.encode()
        own = [f"[{options.host}]" if ":" in options.host else options.host]
        loopback = LOOPBACK_NAMES if options.loopback else ()
        names = [name for name in (*own, *options.names) if name not in ANY_ADDRESS]
        self._names = {name.lower() for name in (*names, *loopback)}
        self._scheme = options.scheme

    def refusal(
        self, headers: Mapping[str, Sequence[str]], *, changes: bool, has_body: bool, open: bool
    ) -> RefusedRequest | None:
        """Why a request is refused; None: it is not. `headers` by lower-case name."""
        hosts = headers.get("host", ())
        named = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if named is None or named[1].lower() not in self._names:
            return RefusedRequest(
                403,
                f"this server is not called {', '.join(hosts)[:80] or 'nothing'}",
                "Ask it by its own name, or give that name with --http-name",
            )
        if self._token and not open and not self._knows_token(headers.get("authorization", ())):
            return RefusedRequest(
                401,
                "the token is missing or wrong",
                "Send the header Authorization: Bearer TOKEN",
                (("WWW-Authenticate", "Bearer"),),
            )
        return self._refused_change(headers, hosts[0], has_body) if changes else None

    def _knows_token(self, given: Sequence[str]) -> bool:
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(" ")
        same = hmac.compare_digest(token.strip().encode("utf-8", "surrogateescape"), self._token)
        return same and scheme.lower() == "bearer"

    def _refused_change(
        self, headers: Mapping[str, Sequence[str]], host: str, has_body: bool
    ) -> RefusedRequest | None:
        origins = headers.get("origin", ())
        sites = headers.get("sec-fetch-site", ())
        foreign = any(origin.lower() != f"{self._scheme}://{host.lower()}" for origin in origins)
        if foreign or any(site not in ("same-origin", "none") for site in sites):
            return RefusedRequest(
                403,
                "a page of another site must not change anything here",
                "Ask from this server's own pages, or from a program",
            )
        kinds = headers.get("content-type", ())
        if has_body and [kind.partition(";")[0].strip().lower() for kind in kinds] != [
            "application/json"
        ]:
            return RefusedRequest(
                415,
                f"the body is {', '.join(kinds)[:80] or 'of no type'}, not application/json",
                "Send JSON, with the header Content-Type: application/json",
            )
        return None
