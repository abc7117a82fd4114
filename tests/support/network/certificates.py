"""TLS certificates for tests, as PEM files that `trustme` creates for each test."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

LOOPBACK = "127.0.0.1"
PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Files:
    certificate: str
    private_key: str
    """The path of the private key in PKCS#8, the only format that Java reads."""


class Authority:
    """A certificate authority. `ca` is the path of its own certificate."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self._ca = trustme.CA()
        self.ca = str(directory / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.ca)
        self._name = name

    def issue(
        self,
        name: str,
        *names: str,
        unit: str | None = None,
        expired: bool = False,
        ends: datetime.datetime | None = None,
    ) -> Files:
        """Issue a certificate into files named after `name`, and replace them if they exist.

        `ends` is the time at which the certificate's validity ends.
        """
        signed = self._ca.issue_cert(
            *(names or (LOOPBACK, "localhost")),
            common_name=name,
            organization_unit_name=unit,
            not_before=PAST,
            not_after=PAST + datetime.timedelta(days=1) if expired else ends,
        )
        files = Files(str(self.directory / f"{name}.crt"), str(self.directory / f"{name}.key"))
        Path(files.certificate).write_bytes(b"".join(b.bytes() for b in signed.cert_chain_pems))
        key = load_pem_private_key(signed.private_key_pem.bytes(), None)
        Path(files.private_key).write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        Path(files.private_key).chmod(0o600)
        return files
