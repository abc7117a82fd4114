"""TLS contexts made from files, and made again when the files change.

The files are checked before a handshake, at most once in `reload_check_s`. The new files may be
unusable: half written, or with a key that does not belong to its certificate. The current context
then stays in use, the failure is counted and logged, and the next check tries again.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence

from quire._runtime.clock import SystemClock
from quire._runtime.event_log import EventLog
from quire._runtime.secret_files import exposure_of
from quire._runtime.shortages import reason_of
from quire._runtime.units import utc_text
from quire.config import TlsClientConfig, TlsServerConfig
from quire.errors import TlsConfigError
from quire.net.certificates import CertificateFile, certificate_file

MINIMUM_VERSION = ssl.TLSVersion.TLSv1_2
MAX_FILE_BYTES = 4 * 1024 * 1024
"""The largest size, in bytes, of a PEM file or a password file. The certificate authorities of a
whole operating system take a tenth of it."""

_BEGIN_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY_MARK = b"PRIVATE KEY-----"
_CLIENT_MODES = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

Stamp = tuple[tuple[int, ...] | None, ...]


class TlsContext:
    """A source of the TLS context for new handshakes, which follows changes of the files."""

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        files: Sequence[str],
        reload_check_s: float,
        monotonic: Callable[[], float],
        log: EventLog,
        *,
        own: str | None = None,
        authorities: str | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Make the first context.

        Args:
            make: A function that reads the files and returns a new context.
            files: The paths of the files whose changes are noticed.
            reload_check_s: The least number of seconds between two checks of the files.
            monotonic: A monotonic clock, in seconds.
            log: The log for successful and failed reloads.
            own: The file with the certificate that this side presents, for `certificates`.
            authorities: The file with the trusted authorities, for `certificates`.
            now_ms: A function that returns the Unix time in milliseconds. The default is the clock
                of the system.

        Raises:
            TlsConfigError: The files cannot be used.
        """
        self.reloads = 0
        self.reloads_failed = 0
        self._make = make
        self._files = tuple(files)
        self._check_s = reload_check_s
        self._monotonic = monotonic
        self._log = log
        self._now_ms = now_ms or SystemClock().now_ms
        self._told: tuple[Stamp, str] | None = None
        # Check the files before reading them, so that the next check finds a change in between.
        self._seen = self._look()
        self._context = make()
        self._dated = own, authorities
        self._certificates = _certificates(*self._dated)
        self._next_check = monotonic() + reload_check_s

    def current(self) -> ssl.SSLContext:
        """Return the TLS context for a new handshake.

        The files are checked for changes first if a check is due.
        """
        now = self._monotonic()
        if now >= self._next_check:
            self._next_check = now + self._check_s
            self._follow()
        return self._context

    def certificates(self) -> tuple[CertificateFile, ...]:
        """Return the expiry dates of the certificates in use, one value for each file.

        The files are checked for changes first if a check is due.
        """
        self.current()
        return self._certificates

    def _follow(self) -> None:
        stamp = self._look()
        if stamp == self._seen:
            return
        try:
            context = self._make()
        except TlsConfigError as error:
            self.reloads_failed += 1
            failure = (stamp, str(error))
            if failure != self._told:
                self._told = failure
                self._log("tls_reload_failed", error=str(error))
            return
        self._context, self._seen, self._told = context, stamp, None
        self._certificates = _certificates(*self._dated)
        self.reloads += 1
        now_ms = self._now_ms()
        expired = [one.path for one in self._certificates if one.expires_ms(now_ms) <= now_ms]
        self._log(
            "tls_reloaded",
            files=list(self._files),
            expires={one.path: utc_text(one.expires_ms(now_ms)) for one in self._certificates},
            # With these files, the other side refuses new connections.
            **({"expired": expired} if expired else {}),
        )

    def _look(self) -> Stamp:
        stamps: list[tuple[int, ...] | None] = []
        for path in self._files:
            try:
                found = os.stat(path)
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev))
            except OSError:
                stamps.append(None)
        return tuple(stamps)


def server_tls(
    config: TlsServerConfig,
    monotonic: Callable[[], float],
    log: EventLog,
    now_ms: Callable[[], int] | None = None,
) -> TlsContext:
    """Return the source of TLS contexts for a server. `now_ms` is the same as for `TlsContext`.

    Raises TlsConfigError if the files cannot be used, or if the options contradict each other.
    """
    return TlsContext(
        lambda: server_context(config),
        _files(config.certificate, config.private_key, config.key_password_file, config.ca),
        config.reload_check_s,
        monotonic,
        log,
        own=config.certificate,
        authorities=config.ca,
        now_ms=now_ms,
    )


def client_tls(
    config: TlsClientConfig,
    monotonic: Callable[[], float],
    log: EventLog,
    now_ms: Callable[[], int] | None = None,
) -> TlsContext:
    """Return the source of TLS contexts for a client. `now_ms` is the same as for `TlsContext`.

    Raises TlsConfigError if the files cannot be used, or if there is a key without a certificate.
    """
    return TlsContext(
        lambda: client_context(config),
        _files(config.certificate, config.private_key, config.key_password_file, config.ca),
        config.reload_check_s,
        monotonic,
        log,
        own=config.certificate,
        authorities=config.ca,
        now_ms=now_ms,
    )


def server_context(config: TlsServerConfig) -> ssl.SSLContext:
    """Make a context for a server. Raises the errors of `server_tls`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM_VERSION
    # Every connection shows its certificate again: no ticket keeps one valid.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load_own(context, config.certificate, config.private_key, config.key_password_file)
    mode = _CLIENT_MODES[config.client_certificates]
    if mode != ssl.CERT_NONE:
        if config.ca is None:
            raise TlsConfigError(
                "client certificates are to be verified, but no authority that signs them is "
                "configured",
                remedy="Set the file with the authority's certificate (ca, --tls-ca)",
            )
        context.verify_mode = mode
        _load_authorities(context, config.ca)
    return context


def client_context(config: TlsClientConfig) -> ssl.SSLContext:
    """Make a context for a client. Raises the errors of `client_tls`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificates and host names
    context.minimum_version = MINIMUM_VERSION
    context.check_hostname = config.verify_host_name
    if config.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, config.ca)
    if config.certificate is not None:
        _load_own(context, config.certificate, config.private_key, config.key_password_file)
    elif config.private_key is not None:
        raise TlsConfigError(
            f"the private key {config.private_key} is configured without a certificate: name "
            "both, or neither"
        )
    return context


# -- inside -----------------------------------------------------------------------------------


def _files(*paths: str | None) -> list[str]:
    return [path for path in paths if path is not None]


def _certificates(own: str | None, authorities: str | None) -> tuple[CertificateFile, ...]:
    """Return the expiry dates of the certificates in two files, one value for each file.

    OpenSSL has accepted the files. A file is left out if no date in it can be read.
    """
    found = []
    for path, presented in ((own, True), (authorities, False)):
        if path is None:
            continue
        try:
            found.append(certificate_file(path, _read(path), own=presented))
        except TlsConfigError:  # it was removed meanwhile
            continue
    return tuple(one for one in found if one is not None)


def _load_own(
    context: ssl.SSLContext, certificate: str, key: str | None, password_file: str | None
) -> None:
    """Load the certificate chain that this side presents, and its private key, into a context.

    Raises TlsConfigError if a file cannot be used, or if every account can read a secret file.
    """
    key = key or certificate  # one file may hold both
    if _BEGIN_CERTIFICATE not in _read(certificate):
        raise TlsConfigError(
            f"the certificate file {certificate} holds no certificate in PEM format: name the "
            "right file, or convert it with openssl"
        )
    if _KEY_MARK not in _read(key):
        raise TlsConfigError(
            f"the key file {key} holds no private key in PEM format: name the right file, or "
            "convert it with openssl"
        )
    for secret in _files(key, password_file):
        if problem := exposure_of(secret):
            raise TlsConfigError(problem)
    asked = False

    def password() -> bytes:  # without it OpenSSL would ask on the terminal
        nonlocal asked
        asked = True
        return _read(password_file).rstrip(b"\r\n") if password_file is not None else b""

    try:
        context.load_cert_chain(certificate, key, password)
    except ValueError as error:
        # OpenSSL takes up to 1,024 bytes. Another file, such as the key, was named by mistake.
        raise TlsConfigError(
            f"the password file {password_file} cannot be used: {error}",
            remedy="Name the file that has nothing but the password of the private key",
        ) from None
    except OSError as error:  # an ssl.SSLError is one
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            problem = f"the private key {key} does not belong to the certificate {certificate}"
        elif asked and password_file is None:
            problem = f"the private key {key} is encrypted, and no password file is set"
        elif asked:
            problem = f"the password in {password_file} does not open the private key {key}"
        else:
            problem = f"certificate {certificate} and private key {key} cannot be used: {error}"
        raise TlsConfigError(problem) from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    if _BEGIN_CERTIFICATE not in _read(path):
        raise TlsConfigError(
            f"the authority file {path} holds no certificate in PEM format: name the right file, "
            "or convert it with openssl"
        )
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise TlsConfigError(
            f"the authority file {path} cannot be used: {error}",
            remedy="Replace it by a file with the authority's PEM certificates",
        ) from None
    # Every certificate in the file is trusted, as in a Java trust store: an authority need not be
    # a root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TlsConfigError(
            f"the TLS file {path} cannot be read: {reason_of(error)}",
            remedy="Check the path and its permissions",
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise TlsConfigError(
            f"the TLS file {path} is larger than {MAX_FILE_BYTES // 2**20} MiB, the limit of "
            "such files",
            remedy="Check that the path names a PEM file",
        )
    return data
