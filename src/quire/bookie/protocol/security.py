"""The rules for which clients a bookie serves, and the TLS handshakes in progress."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire._runtime.tasks import TaskSet
from quire._runtime.units import utc_text
from quire.codec.wire.certificate import is_authorized, organizational_unit
from quire.config import BookieConfig, TlsServerConfig
from quire.errors import TlsConfigError
from quire.net.certificates import CertificateFile
from quire.net.network import Network
from quire.net.tls import server_context, server_tls


class SecurityCounters(Protocol):
    """The counters of the bookie that this module increases."""

    tls_connections: int
    tls_failures: int
    tls_refusals: int


def check_security(config: BookieConfig) -> None:
    """Raise TlsConfigError if the TLS options contradict each other or a file cannot be used."""
    if config.tls is None:
        if config.tls_required or config.authorized_roles:
            raise TlsConfigError(
                "this bookie is to accept only TLS, but no certificate is configured",
                remedy="Configure the bookie's certificate and key (tls, --tls-cert, --tls-key)",
            )
        return
    if config.authorized_roles and config.tls.client_certificates == "none":
        raise TlsConfigError(
            "this bookie is to authorise roles, but does not ask clients for certificates",
            remedy="Set client_certificates (--tls-client-certs) to required",
        )
    if "" in config.authorized_roles:
        raise TlsConfigError(
            "authorized_roles of this bookie contains an empty role", remedy="Give each role a name"
        )
    server_context(config.tls)


class Security:
    """The TLS settings of a bookie, and the handshakes in progress.

    Creating it raises the errors of `check_security`.
    """

    def __init__(
        self,
        config: BookieConfig,
        network: Network,
        clock: Clock,
        log: EventLog,
        counters: SecurityCounters,
    ) -> None:
        check_security(config)
        self.clear_text_served = not (config.tls_required or config.authorized_roles)
        self._roles = frozenset(config.authorized_roles)
        self._network = network
        self._log = log
        self._now_ms = clock.now_ms
        self._counters = counters
        self._config = config.tls or TlsServerConfig("")
        self._tls = None
        if config.tls is not None:
            self._tls = server_tls(config.tls, clock.monotonic, log, clock.now_ms)
        self._turns = asyncio.Semaphore(self._config.max_handshakes)
        self._handshakes = TaskSet()

    @property
    def offers_tls(self) -> bool:
        return self._tls is not None

    @property
    def reloads(self) -> int:
        return self._tls.reloads if self._tls is not None else 0

    @property
    def reloads_failed(self) -> int:
        return self._tls.reloads_failed if self._tls is not None else 0

    def certificates(self) -> tuple[CertificateFile, ...]:
        """Return the certificates in the bookie's TLS files, with the times when they expire."""
        return self._tls.certificates() if self._tls is not None else ()

    def accepts(self, peer: str, certificate: Any) -> bool:
        """Count a secured connection, and return whether its requests are served.

        They are served if no roles are configured, or if the certificate has an authorised role.
        `certificate` is the client's verified certificate as `getpeercert` returns it, or an empty
        value. A refusal is logged.
        """
        self._counters.tls_connections += 1
        if not self._roles:
            return True
        subject = certificate.get("subject", ()) if certificate else ()
        if is_authorized(subject, self._roles):
            return True
        self._counters.tls_refusals += 1
        unit = organizational_unit(subject) if certificate else None
        self._log("role_refused", peer=peer, certificate=bool(certificate), unit=unit)
        return False

    def secure(self, peer: str, transport: asyncio.Transport) -> None:
        """Begin the TLS handshake of a connection in the background.

        The transport's protocol then gets `connection_made` with a secured transport, or
        `connection_lost`.
        """
        self._handshakes.start(self._secure(peer, transport))

    async def _secure(self, peer: str, transport: asyncio.Transport) -> None:
        assert self._tls is not None
        limit_s = self._config.handshake_timeout_s
        secured = False
        try:
            async with asyncio.timeout(limit_s), self._turns:
                await self._network.start_tls(transport, self._tls.current(), server_side=True)
            secured = True
        except TimeoutError:
            self._failed(peer, f"the handshake was not done within {limit_s:g} s")
        except OSError as error:
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            self._failed(peer, reason or str(error) or type(error).__name__)
        finally:
            if not secured:
                transport.abort()  # also if it still waited for its turn

    def _failed(self, peer: str, reason: str) -> None:
        self._counters.tls_failures += 1
        # A client that does not accept the bookie's certificate only closes the connection.
        now_ms = self._now_ms()
        for one in self.certificates():
            if one.own and (expires_ms := one.expires_ms(now_ms)) <= now_ms:
                reason += (
                    f"; the certificate of this bookie ({one.path}) expired at "
                    f"{utc_text(expires_ms)}"
                )
        self._log("tls_handshake_failed", peer=peer, reason=reason)

    async def close(self) -> None:
        """Cancel the handshakes in progress, which closes their connections."""
        await self._handshakes.close()
