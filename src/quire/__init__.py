"""Quire: Apache BookKeeper in Python.

    import quire

    async with quire.connect("sqlite:////tmp/cluster/metadata.db") as client:
        async with await client.create_ledger() as ledger:
            await ledger.append(b"acknowledged means: on disk, fsynced, on a quorum")

The same names without `await` are in `quire.blocking`.
"""

from quire import errors
from quire.client import CallerIdWriter, Client, LedgerReader, LedgerWriter, blocking, connect
from quire.client.quarantine import Suspect
from quire.codec.digest import DigestType
from quire.codec.entry import Entry, EntryRun
from quire.codec.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.config import (
    BookieConfig,
    ClientConfig,
    PlacementConfig,
    TlsClientConfig,
    TlsServerConfig,
)
from quire.errors import QuireError
from quire.metadata import ZooKeeperOptions
from quire.net.control import BookieInfo

__version__ = "0.1.0"

__all__ = [
    "BookieConfig",
    "BookieInfo",
    "CallerIdWriter",
    "Client",
    "ClientConfig",
    "DigestType",
    "Entry",
    "EntryRun",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "PlacementConfig",
    "QuireError",
    "Segment",
    "Suspect",
    "TlsClientConfig",
    "TlsServerConfig",
    "ZooKeeperOptions",
    "blocking",
    "connect",
    "errors",
]
