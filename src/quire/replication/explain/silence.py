"""Why a registered bookie does not answer new clients, and what to do about it."""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from quire.client import Client
from quire.client.client import pool_of
from quire.codec.metadata.cookie import decode, split_directories
from quire.errors import QuireError, TlsError, UnauthorizedError
from quire.metadata.interface import MetadataStore
from quire.net.control import BookieInfo, ControlChannel
from quire.net.handshake import is_expired

DEFAULT_PORT = 3181
"""The port of a bookie that was started without `--port`."""

REPAIR_SOON = (
    "The registration ends with its session, within seconds. Then autorecovery copies the ledgers"
)
"""The present repair of a registered bookie whose process does not run."""
NO_REPAIR = (
    "Nothing until the next check of all ledgers (by default once a week). Then autorecovery "
    "treats a bookie that still does not answer as lost, and copies its ledgers"
)
"""The present repair of a registered bookie that does not answer for another reason."""


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

    Raises no QuireError. Cancel-safe.
    """
    try:
        return await pool_of(client).ask_anew(bookie, _answer, timeout_s)
    except QuireError as error:
        return silence_of(error)


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


async def data_directories(store: MetadataStore, bookie: str) -> tuple[str, ...]:
    """Return the data directories in the cookie of a bookie, or () if it cannot be read."""
    try:
        return tuple(split_directories(decode((await store.read_cookie(bookie)).value).ledger_dirs))
    except QuireError:
        return ()


def start_command(bookie: str, directories: Sequence[str]) -> str:
    """Return the command that starts a bookie with these data directories again.

    Its id is its former address, unless it was started with an id of its own.
    """
    words = ["quire", "bookie", "start"]
    for directory in directories or ["DIR"]:
        words += ["--dir", directory]
    port = bookie.rpartition(":")[2]
    if port.isdecimal() and int(port) != DEFAULT_PORT:
        words += ["--port", port]
    # People paste this command into a shell, and the paths come from a bookie: quote them.
    return shlex.join(words)
