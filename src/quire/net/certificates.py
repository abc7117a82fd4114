"""When certificates expire: those in this process's files, and those of the other side."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from quire._runtime.metrics import Metric, Sample
from quire.codec.certificate_dates import BadCertificateError, valid_dates

EXPIRES_SOON_MS = 14 * 86_400_000
"""The milliseconds before the expiry of a certificate from which on it is reported."""
CERTIFICATES_MAX = 1_000
"""The number of certificates of one file whose dates are read. The authorities of a whole system
are about 150."""

_WHOSE = {"bookie": "this bookie", "client": "the client", "http": "the HTTP server"}
"""The owners of TLS files in the help of metrics, by the word in the name of the metric."""
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class CertificateFile:
    """When the certificates in one PEM file expire."""

    path: str
    own: bool
    """Whether this side presents them. Otherwise they are the authorities that it trusts."""
    ends_ms: tuple[int, ...]
    """The Unix times in milliseconds, in the order of the file."""

    def expires_ms(self, now_ms: int) -> int:
        """Return the Unix time in milliseconds at which this file has to be replaced.

        Every certificate of a presented chain must be valid. A file of authorities may keep old
        ones beside the new ones, so those that have expired count only if no other is left.
        """
        if self.own:
            return min(self.ends_ms)
        return min((one for one in self.ends_ms if one > now_ms), default=max(self.ends_ms))


def certificate_file(path: str, pem: bytes, *, own: bool) -> CertificateFile | None:
    """Return when the certificates in a file with these contents expire.

    The result is None if no certificate in it can be read. OpenSSL's own errors say why.
    """
    ends = _ends_ms(pem.decode("ascii", "replace"))
    return CertificateFile(path, own, ends) if ends else None


@dataclass(frozen=True, slots=True)
class CertificateExpiry:
    """When one TLS file has to be replaced."""

    path: str
    own: bool
    """Whether its owner presents the certificate. Otherwise the file has trusted authorities."""
    expires_ms: int
    """The Unix time in milliseconds."""


def expiries(files: Iterable[CertificateFile], now_ms: int) -> list[CertificateExpiry]:
    """Return when each file has to be replaced, as seen at this time."""
    return [CertificateExpiry(one.path, one.own, one.expires_ms(now_ms)) for one in files]


def expiry_metric(whose: str, files: Iterable[CertificateExpiry]) -> Metric:
    """Return the metric `quire_WHOSE_tls_certificate_expires_seconds`, with a sample per file."""
    samples = [
        Sample(
            one.expires_ms / 1000,
            {"file": one.path, "use": "own" if one.own else "authorities"},
        )
        for one in files
    ]
    return Metric(
        f"quire_{whose}_tls_certificate_expires_seconds",
        "gauge",
        f"The Unix time in seconds at which a TLS file of {_WHOSE[whose]} has to be replaced, "
        "because a certificate in it expires. `use` is `own` or `authorities`.",
        tuple(samples),
    )


def _ends_ms(pem: str) -> tuple[int, ...]:
    ends = []
    for block in pem.split(_BEGIN)[1 : CERTIFICATES_MAX + 1]:
        body, end, _ = block.partition(_END)
        try:
            ends.append(valid_dates(ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{body}{end}")).ends_ms)
        except (BadCertificateError, ValueError):
            continue
    return tuple(ends)


def peer_expires_ms(transport: asyncio.BaseTransport) -> int | None:
    """Return the Unix time in milliseconds at which the other side's certificate expires.

    It is that of the whole chain if Python knows the chain (3.13), otherwise that of the
    certificate itself. None without TLS, and if the other side has presented no certificate.
    """
    secured = transport.get_extra_info("ssl_object")
    if secured is None:
        return None
    try:
        chain: list[bytes] = getattr(secured, "get_verified_chain", list)()
    except ValueError:  # it was not verified
        chain = []
    presented = chain or [secured.getpeercert(binary_form=True)]
    try:
        return min(valid_dates(one).ends_ms for one in presented)
    except (BadCertificateError, TypeError):  # there is none, or it cannot be read
        return None
