"""The making of connections to bookies, for both protocols, with or without TLS.

With TLS, a connection goes through these steps:

    connect, START_TLS in clear text -> EOK in clear text -> TLS handshake
    -> one harmless request inside -> the channel takes over

The request inside TLS shows whether the bookie accepts this client. In TLS 1.3 a client's handshake
is complete before the server has checked its certificate, so a refusal would otherwise appear as a
lost connection during the first real request.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar, cast

from quire._runtime.event_log import LEVELS, level_of
from quire._runtime.shortages import shortage
from quire._runtime.units import host_port
from quire.codec.metadata.registration import default_bookie_id
from quire.codec.wire import v3
from quire.codec.wire.messages_pb2 import Response
from quire.codec.wire.v2 import CONNECTION_REFUSED, LENGTH, Code
from quire.config import ClientConfig
from quire.errors import BookieUnavailableError, QuireError, TlsError
from quire.net.certificates import CertificateFile, peer_expires_ms
from quire.net.link import refusal
from quire.net.network import Network
from quire.net.tls import client_context, client_tls

MAX_ANSWER_BYTES = 1024
"""The largest size, in bytes, of an answer before the channel takes over. Correct answers have
about 20 bytes."""
START_TLS_TXN = 1
PROBE_TXN = 2

EXPIRED_REMEDY = (
    "Renew the bookie's certificate: replace the files of its --tls-cert and --tls-key. It loads "
    "them by itself and need not be restarted"
)

_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = frozenset((2, 18, 19, 20, 21))
_WRONG_NAME = frozenset((62, 63, 64))
"""OpenSSL's X509_V_ERR_ numbers for a certificate with a wrong name. The constants above have the
numbers for other reasons."""

P = TypeVar("P", bound=asyncio.Protocol)

_SLICES = 10
"""The number of timers that make up the time-out of a connection."""


@asynccontextmanager
async def _timeout(limit_s: float) -> AsyncIterator[None]:
    """Limit the block as `asyncio.timeout`, by the time in which the event loop runs.

    The program may keep the loop for seconds, or be stopped. The connection has then been made
    meanwhile, but the loop sees that its timer has expired before it sees that. So the time is
    measured in slices, and a pause of the loop counts as one of them.
    """
    loop = asyncio.get_running_loop()
    done = 0
    timer: asyncio.TimerHandle

    def slice_ended() -> None:
        nonlocal done, timer
        done += 1
        if done >= _SLICES:
            limit.reschedule(loop.time())
            return
        timer = loop.call_later(limit_s / _SLICES, slice_ended)

    timer = loop.call_later(limit_s / _SLICES, slice_ended)
    try:
        async with asyncio.timeout(None) as limit:
            yield
    finally:
        timer.cancel()


class Dialer:
    """The connector of one client, which applies the client's TLS settings and time-out."""

    def __init__(self, network: Network, config: ClientConfig) -> None:
        """Create a connector, and load the TLS files if TLS is configured.

        Raises TlsConfigError if the files cannot be used.
        """
        self._network = network
        self._timeout_s = config.connect_timeout_s
        self._tls = None
        self._tls_config = config.tls
        if config.tls is not None:
            loop = asyncio.get_running_loop()
            self._tls = client_tls(config.tls, loop.time, _log_event)

    def certificates(self) -> tuple[CertificateFile, ...]:
        """Return the expiry dates of the certificates in the client's TLS files.

        There is one value for each file. The result is empty without TLS.
        """
        return self._tls.certificates() if self._tls is not None else ()

    async def connect(
        self,
        bookie_id: str,
        host: str,
        port: int,
        protocol: P,
        timeout_s: float | None = None,
    ) -> P:
        """Connect `protocol` to a bookie, and return it after its `connection_made`.

        If TLS is configured, the connection is secured and the bookie's certificate is verified. An
        unencrypted connection is never tried instead. `timeout_s` replaces the configured time-out.
        Cancel-safe.

        Raises:
            BookieUnavailableError: The bookie cannot be reached, refuses another connection, or
                does not complete the connection within the time-out.
            TlsError: The bookie does not offer TLS, or one side does not accept the other.
        """
        who = f"bookie {bookie_id}"
        if bookie_id != default_bookie_id(host, port):
            who += f" at {host_port(host, port)}"
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        greeter = _Greeter(who)
        try:
            async with _timeout(limit_s):
                if self._tls is None:
                    await self._network.connect(host, port, lambda: protocol)
                else:
                    await self._secure(self._tls.current(), greeter, who, host, port, protocol)
        except QuireError:
            raise
        except TimeoutError as error:
            did = "did not accept a connection"
            if greeter.connected:
                did = "accepts connections, but did not complete one with TLS"
            raise BookieUnavailableError(f"{who} {did} within {limit_s:g} s") from error
        except OSError as error:
            raise BookieUnavailableError(
                f"{who} cannot be reached: {shortage(error) or error}"
            ) from error
        return protocol

    async def presented_until_ms(
        self, bookie_id: str, host: str, port: int, timeout_s: float
    ) -> int | None:
        """Return the Unix time in milliseconds at which a bookie's certificate expires.

        The certificate is not verified, so the date of an expired one is returned as well. The
        connection is used for nothing else. The result is None without TLS, or if the bookie
        presents no certificate within `timeout_s`. Raises no QuireError. Cancel-safe.
        """
        if self._tls_config is None:
            return None
        who = f"bookie {bookie_id}"
        greeter = _Greeter(who)
        try:
            context = client_context(self._tls_config)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            async with _timeout(timeout_s):
                await self._begin_tls(context, greeter, who, host, port)
        except (QuireError, OSError):  # a TimeoutError is one
            return None
        try:
            return peer_expires_ms(greeter.transport)
        finally:
            greeter.transport.abort()

    async def _secure(
        self,
        context: ssl.SSLContext,
        greeter: _Greeter,
        who: str,
        host: str,
        port: int,
        protocol: asyncio.Protocol,
    ) -> None:
        await self._begin_tls(context, greeter, who, host, port)
        try:
            _check_welcome(await greeter.ask(v3.bookie_info_request(PROBE_TXN, 0)), who)
            greeter.hand_over(protocol)
        except BaseException:
            greeter.transport.abort()
            raise

    async def _begin_tls(
        self, context: ssl.SSLContext, greeter: _Greeter, who: str, host: str, port: int
    ) -> None:
        """Connect, ask the bookie for TLS, and complete the handshake."""
        await self._network.connect(host, port, lambda: greeter)
        try:
            _check_offer(await greeter.ask(v3.start_tls_request(START_TLS_TXN)), who)
            try:
                await self._network.start_tls(
                    greeter.transport,
                    context,
                    server_side=False,
                    server_hostname=host,
                )
            except OSError as error:  # an ssl.SSLError is one
                raise handshake_error(error, who, host) from error
        except BaseException:
            greeter.transport.abort()
            raise


class _Greeter(asyncio.Protocol):
    """The asyncio protocol that sets up TLS on a connection before its channel takes over.

    It expects one answer to each request and no further byte, except a refusal from inside TLS.
    """

    transport: asyncio.Transport
    _answer: asyncio.Future[Response]
    _lost: BookieUnavailableError | None

    def __init__(self, who: str) -> None:
        self.secured = False
        self._who = who
        self._held = b""
        self._lost = None
        self._successor: asyncio.Protocol | None = None

    async def ask(self, request: bytes) -> Response:
        """Send a request, wait for its answer, and return it.

        Reading is paused once the answer has arrived, because data that the bookie sends later must
        reach the next protocol.
        """
        if self._lost is not None:
            raise self._lost
        answer = self._answer
        self.transport.write(request)
        return await answer

    @property
    def connected(self) -> bool:
        """Whether the bookie's system has accepted the connection."""
        return hasattr(self, "transport")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport: first the unencrypted one, later the one inside TLS."""
        self.secured = self.connected
        self.transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        self._answer = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self._answer.done():
            self._fail(self._too_much())
            return
        self._held += data
        held = self._held
        if not self.secured and held.startswith(CONNECTION_REFUSED):
            self._fail(refusal(self._who))
            return
        if len(held) < LENGTH.size:
            return
        size = LENGTH.size + int(LENGTH.unpack_from(held)[0])
        if size > MAX_ANSWER_BYTES or (len(held) > size and not self.secured):
            # Anybody on the network may have added these bytes after the unencrypted answer.
            self._fail(self._too_much())
        elif len(held) >= size:
            if len(held) > size:
                # These bytes are from the bookie itself. A refusal says more than this error.
                self._lost = self._too_much()
            self._held = b""
            self.transport.pause_reading()
            try:
                answer = v3.parse_response(held[LENGTH.size : size])
            except v3.BadMessageError:
                self._fail(
                    TlsError(
                        f"{self._who} sent something that is not an answer to START_TLS, so the "
                        "connection was closed",
                        remedy="Try again, because the answer may have been damaged on the way. "
                        "If the error returns, check the version of the bookie",
                    )
                )
                return
            self._answer.set_result(answer)

    def _too_much(self) -> TlsError:
        return TlsError(
            f"{self._who} sent data after its answer to START_TLS, so the connection was closed",
            remedy="Check the version of the bookie, and whether somebody between this client and "
            "the bookie adds data",
        )

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        if self._lost is not None:
            raise self._lost
        self._successor = protocol
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._successor is not None:  # the call was on its way when the successor took over
            self._successor.connection_lost(exc)
            return
        why = f": {exc}" if exc else ""
        if self.secured:
            error = TlsError(
                f"{self._who} closed the connection right after the TLS handshake{why}",
                remedy="The bookie requires a client certificate, or another one; the bookie's log "
                "says which. Use one that the bookie's authority signed (certificate, --tls-cert)",
            )
        else:
            error = TlsError(
                f"{self._who} closed the connection when it was asked for TLS{why}",
                remedy="See the bookie's log. It may not support TLS, or not accept another "
                "connection",
            )
        self._fail(error)

    def _fail(self, error: BookieUnavailableError) -> None:
        self._lost = self._lost or error
        self.transport.abort()
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # a cancelled caller never retrieves it


def _check_offer(answer: Response, who: str) -> None:
    code = v3.status_of(answer, 0)
    if int(answer.header.operation) != v3.Op.START_TLS:
        raise TlsError(
            f"{who} answered the START_TLS request with the answer to another request",
            remedy="Try again, because the answer may have been damaged on the way. If the error "
            "returns, check the version of the bookie",
        )
    if code == Code.BAD_REQUEST:
        raise TlsError(
            f"{who} does not offer TLS",
            remedy=(
                "Configure the bookie's certificate (--tls-cert, --tls-key), or connect without TLS"
            ),
        )
    if code != Code.OK:
        raise TlsError(
            f"{who} refused to start TLS (code {code})",
            remedy="The log of the bookie says why. To connect without TLS, leave out --tls-ca",
        )


def _check_welcome(answer: Response, who: str) -> None:
    # Apache's bookie answers START_TLS again when it does not accept the certificate's role.
    again = int(answer.header.operation) == v3.Op.START_TLS
    if again or v3.status_of(answer, 0) == Code.UNAUTHORIZED:
        raise TlsError(
            f"{who} does not accept this client after the TLS handshake",
            remedy="Use a certificate whose first role (in the OU of its subject) is one that the "
            "bookie authorises. If the bookie requires SASL, use another bookie: Quire does "
            "not support SASL",
        )


def handshake_error(error: OSError, who: str, host: str) -> TlsError:
    """Return the error for a failed TLS handshake, with the reason and a remedy.

    `who` names the bookie, and `host` is the name or address that its certificate should have.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in _WRONG_NAME:
            return TlsError(
                f"the certificate of {who} is not for {host}",
                remedy="Put the host or address that the bookie advertises into its certificate "
                "(subjectAltName), or, for a cluster whose certificates have no names, switch "
                "verify_host_name off",
            )
        if code == _EXPIRED:
            return TlsError(
                f"the certificate of {who}, or of an authority that signed it, has expired",
                remedy=EXPIRED_REMEDY,
            )
        if code == _NOT_YET_VALID:
            return TlsError(
                f"the certificate of {who} is not valid yet",
                remedy="Check the clocks of both machines",
            )
        if code in _UNKNOWN_AUTHORITY:
            return TlsError(
                f"the certificate of {who} is not signed by a trusted authority "
                f"({error.verify_message})",
                remedy="Name the file with the authority that signed it (ca, --tls-ca)",
            )
        return TlsError(
            f"the certificate of {who} cannot be verified: {error.verify_message}",
            remedy="Replace the bookie's certificate, or correct the file of authorities (ca, "
            "--tls-ca)",
        )
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    return TlsError(
        f"the TLS handshake with {who} failed: {reason}",
        remedy="See the bookie's log. The bookie may require a client certificate, or the two "
        "sides may have no TLS version in common",
    )


def is_expired(error: BaseException) -> bool:
    """Return whether an error of `Dialer.connect` means that a certificate has expired.

    It is the certificate of the bookie, or of an authority that signed it.
    """
    cause = error.__cause__
    return isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code == _EXPIRED


def _log_event(event: str, **fields: object) -> None:
    level = LEVELS[level_of(event, fields)]
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    logging.getLogger(__name__).log(level, "%s %s", event, text)
