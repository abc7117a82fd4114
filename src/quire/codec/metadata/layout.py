"""The node LAYOUT, which names the ledger manager of the cluster.

    <format version> LF <manager> ":" <manager version>

The versions are decimal text. Format 2 names the manager by its Java class, and format 1 by a short
name. A newline at the end is read but not written.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.codec.metadata import ledger_path
from quire.codec.metadata.ledger_path import LedgerManager
from quire.errors import LaterClusterError, MetadataError, written_later

FORMAT_VERSION = 2
_VERSION_DIGITS_MAX = 9
"""The largest number of digits that is read. Python refuses to read numbers of more than 4,300."""
MANAGER_VERSION = 1
_BY = "Quire or BookKeeper"
_RESTORE = "Restore the node from a backup of ZooKeeper (docs/guides/repair/disaster-recovery.md)"
_PACKAGE = "org.apache.bookkeeper.meta."
HIERARCHICAL = _PACKAGE + "HierarchicalLedgerManagerFactory"
FLAT = _PACKAGE + "FlatLedgerManagerFactory"
LONG_HIERARCHICAL = _PACKAGE + "LongHierarchicalLedgerManagerFactory"
LEGACY_HIERARCHICAL = _PACKAGE + "LegacyHierarchicalLedgerManagerFactory"

_MANAGERS = {
    HIERARCHICAL: ledger_path.HIERARCHICAL,
    FLAT: ledger_path.FLAT,
    LONG_HIERARCHICAL: ledger_path.LONG_HIERARCHICAL,
    LEGACY_HIERARCHICAL: ledger_path.LEGACY_HIERARCHICAL,
}
_MANAGERS_FORMAT_1 = {"hierarchical": ledger_path.HIERARCHICAL, "flat": ledger_path.FLAT}

_CREATED = (HIERARCHICAL, LONG_HIERARCHICAL, FLAT)
FACTORIES = {_MANAGERS[factory].name: factory for factory in _CREATED}
"""The Java class of each manager that a URI or a new cluster may name, by the manager's name."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The content of the node LAYOUT."""

    factory: str = HIERARCHICAL
    manager_version: int = MANAGER_VERSION
    format_version: int = FORMAT_VERSION

    def manager(self) -> LedgerManager:
        """Return the ledger manager that the layout names.

        Raises:
            LaterClusterError: A later version of Quire or of BookKeeper wrote LAYOUT.
            MetadataError: The ledger manager is unknown.
        """
        known = _MANAGERS_FORMAT_1 if self.format_version == 1 else _MANAGERS
        if self.factory in known and self.manager_version > MANAGER_VERSION:
            raise LaterClusterError(
                written_later(
                    "LAYOUT", f"version {self.manager_version} of the manager {self.factory}",
                    f"version {MANAGER_VERSION}", by=_BY,
                )
            )  # fmt: skip
        if self.factory not in known or self.manager_version != MANAGER_VERSION:
            raise MetadataError(
                "the LAYOUT node of the cluster names a ledger manager that Quire does not "
                f"know: {self.factory}, version {self.manager_version}",
                remedy=(
                    f"This version of Quire knows version {MANAGER_VERSION} of "
                    f"{', '.join(known)}. Use the program that created the cluster"
                ),
            )
        return known[self.factory]


def encode(layout: Layout) -> bytes:
    """Return the content of the node LAYOUT."""
    return f"{layout.format_version}\n{layout.factory}:{layout.manager_version}".encode()


def decode(data: bytes) -> Layout:
    """Decode the content of the node LAYOUT.

    Raises:
        LaterClusterError: A later version of Quire or of BookKeeper wrote the bytes.
        MetadataError: The bytes are not a layout.
    """
    try:
        lines = data.decode().split("\n")
        format_version = int(lines[0])
    except ValueError:
        raise MetadataError(
            f"the LAYOUT node of the cluster is damaged: it begins with {data[:80]!r}",
            remedy=_RESTORE,
        ) from None
    if format_version > FORMAT_VERSION:
        raise LaterClusterError(
            written_later(
                "LAYOUT", f"format {format_version}", f"the formats 1 to {FORMAT_VERSION}", by=_BY
            )
        )
    if format_version < 1:
        raise MetadataError(
            f"the LAYOUT node of the cluster is damaged: it has format {format_version}",
            remedy=_RESTORE,
        )
    parts = lines[1].strip().split(":") if len(lines) > 1 else []
    if len(parts) != 2 or not parts[1].isdecimal() or len(parts[1]) > _VERSION_DIGITS_MAX:
        raise MetadataError(
            f"the LAYOUT node of the cluster names no ledger manager: {data[:80]!r}",
            remedy=_RESTORE,
        )
    return Layout(parts[0], int(parts[1]), format_version)
