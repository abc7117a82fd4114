"""Why a registered bookie does not answer new clients, and what to do about it."""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from quire._runtime.names.in_commands import COMMANDS_MAX, for_each
from quire._runtime.units import does, some_of, them, utc_text
from quire.client import Client
from quire.client.client import pool_of
from quire.codec.metadata.cookie import decode, split_directories
from quire.errors import QuireError, TlsError, UnauthorizedError
from quire.metadata.bookies.start_commands import StartCommand
from quire.metadata.interface import MetadataStore
from quire.net.control import BookieInfo, ControlChannel
from quire.net.handshake import is_expired
from quire.net.port_probe import ProbeResult

DEFAULT_PORT = 3181
"""The port of a bookie that was started without `--port`."""


class SilenceKind(StrEnum):
    """The kinds of reasons, which differ in what to do."""

    EXPIRED = "expired"
    """Its certificate, or that of an authority that signed it, has expired."""
    TLS = "tls"
    """The connection cannot be secured for another reason, or the bookie accepts only TLS."""
    REFUSED = "refused"
    """Nothing listens at its address."""
    OTHER = "other"
    """It cannot be reached, or does not answer in time."""

    @property
    def is_refusal(self) -> bool:
        """Whether the bookie answers, and one side does not accept the other."""
        return self in (SilenceKind.EXPIRED, SilenceKind.TLS)


@dataclass(frozen=True, slots=True)
class Silence:
    """Why a bookie does not answer."""

    kind: SilenceKind
    why: str
    remedy: str
    """The advice that comes with the reason, or "" if there is none."""
    certificate_expires_ms: int | None = None
    """The Unix time in milliseconds at which the bookie's certificate expires, if the reason is
    `EXPIRED` and the date is known."""

    @property
    def is_refusal(self) -> bool:
        """Whether the bookie answers, and one side does not accept the other."""
        return self.kind.is_refusal


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a bookie over a new connection."""

    info: BookieInfo
    certificate_expires_ms: int | None
    """The Unix time in milliseconds at which the bookie's certificate expires. None without TLS."""


async def ask_anew(client: Client, bookie: str, timeout_s: float) -> Answer | Silence:
    """Ask a bookie for its disk space over a new connection, as a new client would.

    Return the answer, or the reason why there is none within `timeout_s` seconds. Raises no
    QuireError. Cancel-safe.
    """
    try:
        return await pool_of(client).ask_anew(bookie, _answer, timeout_s)
    except QuireError as error:
        silence = silence_of(error)
    if silence.kind is SilenceKind.EXPIRED:
        # The failed handshake does not tell the date.
        expires_ms = await pool_of(client).certificate_until_ms(bookie, timeout_s)
        return dated(silence, bookie, expires_ms, client.clock.now_ms())
    return silence


def dated(silence: Silence, bookie: str, expires_ms: int | None, now_ms: int) -> Silence:
    """Return the silence of a bookie whose certificate has expired, with the date.

    `expires_ms` is the Unix time in milliseconds at which the bookie's own certificate expires, or
    None if it is not known. If that is in the future, an authority's certificate has expired.
    """
    if expires_ms is None:
        return silence
    if expires_ms <= now_ms:
        why = f"the certificate of bookie {bookie} expired at {utc_text(expires_ms)}"
    else:
        why = (
            f"the certificate of bookie {bookie} is valid until {utc_text(expires_ms)}, but an "
            "authority that signed it has expired"
        )
    return replace(silence, why=why, certificate_expires_ms=expires_ms)


async def _answer(link: ControlChannel) -> Answer:
    return Answer(await link.bookie_info(), link.certificate_expires_ms)


def silence_of(error: QuireError) -> Silence:
    """Return why a bookie does not answer, from the error of the attempt to ask it."""
    why = str(error.args[0])
    if isinstance(error, UnauthorizedError):
        return Silence(
            SilenceKind.TLS,
            "it does not serve clients without TLS, or not this one",
            "Connect with TLS: --tls-ca, or QUIRE_TLS_CA. If it asks for client certificates, also "
            "--tls-cert and --tls-key",
        )
    if isinstance(error, TlsError):
        kind = SilenceKind.EXPIRED if is_expired(error) else SilenceKind.TLS
        return Silence(kind, why, error.remedy)
    # A host name may have several addresses. Then the error names the reason of each.
    if set(re.findall(r"\[Errno (\d+)\]", why)) == {str(errno.ECONNREFUSED)}:
        return Silence(SilenceKind.REFUSED, "nothing listens at its address", "")
    return Silence(SilenceKind.OTHER, why, error.remedy)


def silent_repair(unrepaired: str, *, down: bool) -> str:
    """Return what is done about a registered bookie that does not answer.

    `unrepaired` says why nothing is repaired, or is "". `down` says that the process of the bookie
    does not run.
    """
    if down:
        then = f"nothing is copied: {unrepaired}" if unrepaired else (
            "autorecovery copies the ledgers"
        )  # fmt: skip
        return f"The registration ends with its session, within seconds. Then {then}"
    if unrepaired:
        return f"Nothing: {unrepaired}"
    return (
        "Nothing until the next check of all ledgers (by default once a week). Then autorecovery "
        "treats a bookie that still does not answer as lost, and copies its ledgers"
    )


def probed_text(probes: Sequence[ProbeResult | None]) -> str:
    """Return what the answers of addresses tell about bookies that are not registered.

    `probes` has the answer of the address of each bookie, or None if it is not known. The result is
    "" if the addresses answer in different ways, or if it is not known how.
    """
    found = set(probes)
    if len(found) != 1:
        return ""
    one = len(probes) == 1
    where = "its address" if one else "their addresses"
    match found.pop():
        case ProbeResult.REFUSED:
            return f"nothing listens at {where}, so {'it is' if one else 'they are'} stopped"
        case ProbeResult.ACCEPTED:
            accepts, runs = (
                ("accepts", "it runs, but is") if one else ("accept", "they run, but are")
            )
            return (
                f"{where} {accepts} connections, so {runs} cut off from the metadata store, "
                "paused, or still starting"
            )
        case ProbeResult.SILENT:
            machines = "its machine is" if one else "their machines are"
            return f"{where} {does(len(probes))} not answer, so {machines} off or cut off"
    return ""


def cut_off_advice(number: int, named: str = "") -> str:
    """Return what to do about bookies that run without a session with the metadata store.

    `named` has their ids, if the advice is given beside that for other bookies.
    """
    log, those = ("its log", "It registers") if number == 1 else ("their logs", "They register")
    return (
        f"Do not start {named or them(number)} again: look in {log} for errors of the metadata "
        "store, check "
        "the network to it, and let a paused process continue. After a start, wait for the event "
        f"serving. {those} again without a restart"
    )


def date_command(path: str, *, own: bool = True) -> str:
    """Return the command that shows when the certificates in a file expire.

    `own` says that the file has one certificate of its owner. Otherwise it has authorities: such a
    file may have many certificates, and openssl x509 reads only the first one.
    """
    file = shlex.quote(path) if path else "FILE"
    if own:
        return f"openssl x509 -enddate -noout -in {file}"
    return f"openssl storeutl -noout -text -certs {file} | grep -e Subject: -e 'Not After'"


def renewal(remedy: str, paths: Mapping[str, str]) -> str:
    """Return the advice to renew the certificates of bookies, with the file of each.

    `paths` has the file of the certificate on the machine of each bookie, by the bookie's id. It is
    "" if it is not known.
    """
    found = f"{remedy}{files_text(paths)}"
    if len(paths) == 1:
        return f"{found}. To see its date on that machine: {date_command(*paths.values())}"
    return f"On each machine, {found[0].lower()}{found[1:]}. {date_commands(paths)}"


def files_text(paths: Mapping[str, str]) -> str:
    """Return the files of bookies in brackets, or "" if none is known. See `renewal`."""
    known = [f"{shlex.quote(path)} of {bookie}" for bookie, path in paths.items() if path]
    return f" ({some_of(known, COMMANDS_MAX)})" if known else ""


def date_commands(paths: Mapping[str, str], *, own: bool = True) -> str:
    """Return the sentences with the command for each bookie that shows when its file expires.

    See `renewal` and `date_command`.
    """
    commands = {bookie: f": {date_command(path, own=own)}" for bookie, path in paths.items()}
    return f"Each machine shows the date of its file. {for_each(commands.items())}"


async def data_directories(store: MetadataStore, bookie: str) -> tuple[str, ...]:
    """Return the data directories in the cookie of a bookie, or () if it cannot be read."""
    try:
        return tuple(split_directories(decode((await store.read_cookie(bookie)).value).ledger_dirs))
    except QuireError:
        return ()


def start_command(
    bookie: str, directories: Sequence[str], started: StartCommand | None = None
) -> str:
    """Return the command that starts a bookie again.

    It is the command `started`, with which the bookie was started before. If `started` is None, the
    command is made from the data directories and from the port in the bookie's id. The id is the
    former address of the bookie, unless the bookie was started with an id of its own.
    """
    # People paste this command into a shell, and the words come from a bookie: quote them.
    if started is not None:
        return shlex.join(started.words)
    words = ["quire", "bookie", "start"]
    for directory in directories or ["DIR"]:
        words += ["--dir", directory]
    port = bookie.rpartition(":")[2]
    if port.isdecimal() and int(port) != DEFAULT_PORT:
        words += ["--port", port]
    return shlex.join(words)


def start_manner(started: StartCommand | None) -> str:
    """Return the words between "Start it again" and the command of `start_command`.

    `started` is the command that last started the bookie, or None if it is not known.
    """
    if started is None:
        return ", with the options that it had"
    where, names = started.working_directory, started.variables
    within = f", in {shlex.quote(where)}" if where else ""
    variables = f", with its environment variables {' and '.join(names)}" if names else ""
    if len(names) == 1:
        variables = f", with its environment variable {names[0]}"
    return f", as it was started before{within}{variables}"
