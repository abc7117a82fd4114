"""Expiry dates of certificates: those in this process's TLS files, and those of a peer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from quire._runtime.metrics import Metric, Sample
from quire.codec.certificate_dates import BadCertificateError, valid_dates

EXPIRES_SOON_MS = 14 * 86_400_000
"""The time before the expiry of a certificate, in milliseconds, at which warnings begin."""
CERTIFICATES_MAX = 1_000
"""The largest number of certificates in one file whose dates are read. A whole operating system has
about 150 certificate authorities."""

_WHOSE = {"bookie": "this bookie", "client": "the client", "http": "the HTTP server"}
"""The owners of TLS files in the help of metrics, by the word in the name of the metric."""
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class CertificateFile:
    """The expiry dates of the certificates in one PEM file."""

    path: str
    own: bool
    """Whether this side presents the certificates. Otherwise they are the authorities that it
    trusts."""
    ends_ms: tuple[int, ...]
    """The Unix time in milliseconds at which each certificate expires, in the order of the file."""

    def expires_ms(self, now_ms: int) -> int:
        """Return the Unix time in milliseconds at which this file has to be replaced.

        Every certificate of a presented chain must be valid. A file of authorities may keep old
        ones beside the new ones, so those that have expired count only if no other is left.
        """
        if self.own:
            return min(self.ends_ms)
        return min((one for one in self.ends_ms if one > now_ms), default=max(self.ends_ms))


def certificate_file(path: str, pem: bytes, *, own: bool) -> CertificateFile | None:
    """Return the expiry dates of the certificates in a PEM file, or None if none can be read.

    `pem` is the contents of the file. `own` says whether this side presents the certificates.
    """
    ends = _ends_ms(pem.decode("ascii", "replace"))
    return CertificateFile(path, own, ends) if ends else None


@dataclass(frozen=True, slots=True)
class CertificateExpiry:
    """The time at which one TLS file has to be replaced, because a certificate in it expires."""

    path: str
    own: bool
    """Whether the process presents the certificates. Otherwise they are trusted authorities."""
    expires_ms: int
    """The Unix time, in milliseconds, at which the file has to be replaced."""


def expiries(files: Iterable[CertificateFile], now_ms: int) -> list[CertificateExpiry]:
    """Return the time at which each file has to be replaced, in the order of the files.

    `now_ms` is the present Unix time in milliseconds.
    """
    return [CertificateExpiry(one.path, one.own, one.expires_ms(now_ms)) for one in files]


def expiry_metric(whose: str, files: Iterable[CertificateExpiry]) -> Metric:
    """Return the metric `quire_WHOSE_tls_certificate_expires_seconds`, with a sample for each file.

    `whose` is "bookie", "client" or "http".
    """
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
    """Return the Unix time in milliseconds at which the peer's certificate expires, or None.

    From Python 3.13 on, it is the earliest expiry in the verified chain. Before, it is the expiry
    of the certificate itself. The result is None without TLS, if the peer has presented no
    certificate, or if its date cannot be read.
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
