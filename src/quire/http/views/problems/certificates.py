"""The problems of certificates that expire soon or have expired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire._runtime.names.in_commands import COMMANDS_MAX
from quire._runtime.units import counted, duration_text, some_of, utc_text
from quire.http.views.problems.problem import Bookie, Problem, Severity
from quire.net.certificates import EXPIRES_SOON_MS, CertificateExpiry
from quire.replication.explain.silence import SilenceKind, date_command, date_commands, files_text


@dataclass(frozen=True, slots=True)
class OwnCertificates:
    """The TLS files of the process that examines the cluster."""

    http: tuple[CertificateExpiry, ...] = ()
    """The certificate of its HTTP server."""
    client: tuple[CertificateExpiry, ...] = ()
    """The files with which it connects to bookies."""

    def authority_expired(self, now_ms: int) -> bool:
        """Return whether no authority of bookies' certificates is valid any more."""
        return any(not one.own and one.expires_ms <= now_ms for one in self.client)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The use of a certificate, in the words of the problem."""

    one: str
    many: str
    risk: str
    files: str


CERTIFICATE = _Kind(
    "certificate",
    "certificates",
    "Clients and other bookies cannot open new connections to it. Connections that are open "
    "continue, so it may seem to work",
    "the files of --tls-cert and --tls-key",
)
CLIENTS_AUTHORITY = _Kind(
    "authority of client certificates",
    "authorities of client certificates",
    "The bookie accepts no client certificate that this authority has signed",
    "the file of --tls-ca",
)
HTTP_SERVER = _Kind(
    "certificate of this HTTP server",
    "",
    "Browsers and programs refuse to connect to this server",
    "the files of --http-tls-cert and --http-tls-key",
)
CLIENT = _Kind(
    "client certificate of this process",
    "",
    "Bookies that ask for client certificates refuse this process",
    "the files of --tls-cert and --tls-key (QUIRE_TLS_CERT, QUIRE_TLS_KEY)",
)
BOOKIES_AUTHORITY = _Kind(
    "authority of the bookies' certificates",
    "",
    "This process, and others with the same file, cannot open new connections to bookies",
    "the file of --tls-ca (QUIRE_TLS_CA), and the certificates that the authority signed",
)


@dataclass(frozen=True, slots=True)
class _Dated:
    """Something of a bookie that expires soon or has expired."""

    bookie: str
    expires_ms: int
    path: str
    """The file, or "" if it is not known."""


def of_certificates(
    bookies: Sequence[Bookie], own: OwnCertificates, now_ms: int
) -> Iterator[Problem]:
    """Yield the problems of the certificates of bookies and of this process."""
    presented: list[_Dated] = []
    trusted: list[_Dated] = []
    for one in bookies:
        if one["state"] == "gone":
            continue
        presented += _presented_by(one, now_ms)
        trusted += [
            _Dated(one["id"], file.expires_ms, file.path)
            for file in _files_of(one)
            if not file.own and file.expires_ms - now_ms < EXPIRES_SOON_MS
        ]
    for found in _expired_first(presented, now_ms):
        yield _of_bookies(CERTIFICATE, found, now_ms)
    for found in _expired_first(trusted, now_ms):
        yield _of_bookies(CLIENTS_AUTHORITY, found, now_ms)
    yield from _of_own(own, now_ms)


def _files_of(bookie: Bookie) -> list[CertificateExpiry]:
    """Return the TLS files in the last report of a bookie."""
    report = bookie.get("report") or {}
    files = report.get("certificates") or ()
    return [CertificateExpiry(**one) for one in files if None not in one.values()]


def _own_file(bookie: Bookie) -> CertificateExpiry | None:
    return min((one for one in _files_of(bookie) if one.own), key=_expires_ms, default=None)


def own_file(bookie: Bookie) -> str:
    """Return the file of the bookie's own certificate, or "" if it is not known.

    The registration names it, and so does the last report of a bookie with an HTTP server.
    """
    registered = bookie.get("tls_files")
    if registered is not None:
        return str(registered["own"])
    found = _own_file(bookie)
    return "" if found is None else found.path


def _presented_by(bookie: Bookie, now_ms: int) -> list[_Dated]:
    """Return the bookie's own certificate, if it expires soon.

    The date of the last handshake counts. A bookie that clients do not connect to with TLS may
    report its file. If new connections fail because it has expired, another problem says so.
    """
    silence = bookie.get("silence")
    if silence is not None and silence["kind"] == SilenceKind.EXPIRED:
        return []
    own = _own_file(bookie)
    expires_ms: int | None = bookie.get("certificate_expires_ms")
    if expires_ms is None and own is not None:
        expires_ms = own.expires_ms
    if expires_ms is None or expires_ms - now_ms >= EXPIRES_SOON_MS:
        return []
    return [_Dated(bookie["id"], expires_ms, own_file(bookie))]


def _expires_ms(file: CertificateExpiry) -> int:
    return file.expires_ms


def _expired_first(found: Sequence[_Dated], now_ms: int) -> Iterator[list[_Dated]]:
    """Yield those that have expired, and those that will, each list with the first one first."""
    by_date = sorted(found, key=lambda one: (one.expires_ms, one.bookie))
    expired = [one for one in by_date if one.expires_ms <= now_ms]
    if expired:
        yield expired
    if len(by_date) > len(expired):
        yield by_date[len(expired) :]


def _when(expires_ms: int, now_ms: int) -> str:
    left_ms = expires_ms - now_ms
    if left_ms <= 0:
        return f"{duration_text(-left_ms / 1000)} ago, at {utc_text(expires_ms)}"
    return f"in {duration_text(left_ms / 1000)}, at {utc_text(expires_ms)}"


def _severity(expires_ms: int, now_ms: int) -> Severity:
    return "bad" if expires_ms <= now_ms else "warn"


def _of_bookies(kind: _Kind, found: Sequence[_Dated], now_ms: int) -> Problem:
    first = found[0]
    expired = first.expires_ms <= now_ms
    named = [f"{one.bookie} ({_when(one.expires_ms, now_ms)})" for one in found]
    paths = {one.bookie: one.path for one in found}
    if len(found) == 1:
        renew = (
            f"Renew it: replace {kind.files} on its machine{files_text(paths)}. The bookie loads "
            "new files by itself and need not be restarted. To see its date there: "
            f"{date_command(first.path, own=kind is CERTIFICATE)}"
        )
    else:
        renew = (
            f"Renew each of them: replace {kind.files} on its machine{files_text(paths)}. A bookie "
            "loads new files by itself and need not be restarted. "
            f"{date_commands(paths, own=kind is CERTIFICATE)}"
        )
    return Problem(
        _severity(first.expires_ms, now_ms),
        f"The {kind.one} of {first.bookie} {'expired' if expired else 'expires'} "
        f"{_when(first.expires_ms, now_ms)}"
        if len(found) == 1
        else f"The {kind.many} of {counted(len(found), 'bookie')} "
        f"{'have expired' if expired else 'expire soon'}: {some_of(named, COMMANDS_MAX)}",
        renew,
        kind.risk if expired else _later(kind.risk),
        bookies=tuple(one.bookie for one in found),
    )


def _of_own(own: OwnCertificates, now_ms: int) -> Iterator[Problem]:
    """Yield the problems of the files of the process that examines the cluster."""
    for kind, files in (
        (HTTP_SERVER, own.http),
        (CLIENT, [one for one in own.client if one.own]),
        (BOOKIES_AUTHORITY, [one for one in own.client if not one.own]),
    ):
        for one in files:
            if one.expires_ms - now_ms >= EXPIRES_SOON_MS:
                continue
            expired = one.expires_ms <= now_ms
            yield Problem(
                _severity(one.expires_ms, now_ms),
                f"The {kind.one} ({one.path}) {'expired' if expired else 'expires'} "
                f"{_when(one.expires_ms, now_ms)}",
                f"Renew it: replace {kind.files}. New files are loaded without a restart. To see "
                f"its date: {date_command(one.path, own=one.own)}",
                kind.risk if expired else _later(kind.risk),
            )


def _later(risk: str) -> str:
    return f"After that, {risk[0].lower()}{risk[1:]}"
