"""The node LAYOUT: how ledgers are arranged in the metadata store (metadata spec, 1.3).

    <format version> LF <manager> ":" <manager version>

Format 2 names the manager by its Java class, verbatim; format 1 by a short type. A newline at the
end is read but not written.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import MetadataError

FORMAT_VERSION = 2
MANAGER_VERSION = 1
_PACKAGE = "org.apache.bookkeeper.meta."
HIERARCHICAL = _PACKAGE + "HierarchicalLedgerManagerFactory"
FLAT = _PACKAGE + "FlatLedgerManagerFactory"
LONG_HIERARCHICAL = _PACKAGE + "LongHierarchicalLedgerManagerFactory"
LEGACY_HIERARCHICAL = _PACKAGE + "LegacyHierarchicalLedgerManagerFactory"
_HIERARCHICAL_FORMAT_1 = "hierarchical"


@dataclass(frozen=True, slots=True)
class Layout:
    factory: str = HIERARCHICAL
    manager_version: int = MANAGER_VERSION
    format_version: int = FORMAT_VERSION

    @property
    def hierarchical(self) -> bool:
        """Whether this is the default arrangement, by its name in either format."""
        names = {1: _HIERARCHICAL_FORMAT_1, 2: HIERARCHICAL}
        return names.get(self.format_version) == self.factory


def encode(layout: Layout) -> bytes:
    return f"{layout.format_version}\n{layout.factory}:{layout.manager_version}".encode()


def decode(data: bytes) -> Layout:
    """`MetadataError` if the bytes are no layout, or one of a later format."""
    try:
        lines = data.decode().split("\n")
        format_version = int(lines[0])
    except ValueError:
        raise MetadataError(f"LAYOUT is damaged: {data[:80]!r}") from None
    if not 1 <= format_version <= FORMAT_VERSION:
        raise MetadataError(f"LAYOUT has format {format_version}; known are 1 and 2")
    parts = lines[1].strip().split(":") if len(lines) > 1 else []
    if len(parts) != 2 or not parts[1].isdecimal():
        raise MetadataError(f"LAYOUT is damaged, it names no ledger manager: {data[:80]!r}")
    return Layout(parts[0], int(parts[1]), format_version)
