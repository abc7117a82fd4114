"""The paths of a bookie's TLS files, as its registration names them.

They are a property of the registration, in JSON. `quire explain` names the file that has to be
renewed, also for a bookie without an HTTP server. Apache's programs ignore the property.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from quire.codec.metadata.stored_json import stored_json

PROPERTY = "quire.tls_files"
"""The name of the property. It is missing if the bookie has no TLS files."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of the TLS files of a bookie, on its machine."""

    own: str
    """The file with the certificate that the bookie presents."""
    authorities: str = ""
    """The file with the authorities of client certificates. Empty if there is none."""


def as_properties(files: TlsFiles | None) -> dict[str, str]:
    """Return the properties of the registration of a bookie with these files.

    They are empty for None, which stands for a bookie without TLS files.
    """
    return {} if files is None else {PROPERTY: json.dumps(asdict(files))}


def from_properties(properties: Mapping[str, str]) -> TlsFiles | None:
    """Return the files in the properties of a registration.

    The result is None if there are none, or if they cannot be decoded.
    """
    try:
        found = stored_json(properties[PROPERTY])
        return TlsFiles(str(found["own"]), str(found["authorities"]))
    except (KeyError, TypeError, ValueError):
        return None
