"""Quire: Apache BookKeeper in Python.

    import quire

    async with quire.connect("sqlite:////tmp/cluster/metadata.db") as client:
        async with client.create_ledger() as ledger:
            await ledger.append(b"once acknowledged, this entry is fsynced on a quorum")

`quire.blocking` has the same names without `await`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quire import errors
from quire._runtime.names.former_names import former_names
from quire._runtime.names.lazy import lazily
from quire.errors import QuireError

if TYPE_CHECKING:
    from quire import blocking
    from quire._runtime.heap import collect_on_demand, keep_heap
    from quire.api import Client, connect
    from quire.client import CallerIdWriter, LedgerReader, LedgerWriter
    from quire.client.cluster.health import UnhealthyBookie
    from quire.client.datasets.datasets import Dataset, Publication
    from quire.client.datasets.format import DatasetLedger
    from quire.codec.entry.digest import DigestType
    from quire.codec.entry.entry import Entry, EntryRun
    from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
    from quire.config import (
        BookieConfig,
        ClientConfig,
        PlacementConfig,
        TlsClientConfig,
        TlsServerConfig,
    )
    from quire.configuration.load import LoadedConfig, load_config
    from quire.metadata import ZooKeeperOptions
    from quire.net.control import BookieInfo
else:
    _present, __dir__ = lazily(
        __name__,
        {
            "BookieConfig": "quire.config:BookieConfig",
            "BookieInfo": "quire.net.control:BookieInfo",
            "CallerIdWriter": "quire.client:CallerIdWriter",
            "Client": "quire.api:Client",
            "ClientConfig": "quire.config:ClientConfig",
            "Dataset": "quire.client.datasets.datasets:Dataset",
            "DatasetLedger": "quire.client.datasets.format:DatasetLedger",
            "DigestType": "quire.codec.entry.digest:DigestType",
            "Entry": "quire.codec.entry.entry:Entry",
            "EntryRun": "quire.codec.entry.entry:EntryRun",
            "LedgerMetadata": "quire.codec.metadata.ledger_metadata:LedgerMetadata",
            "LedgerReader": "quire.client:LedgerReader",
            "LedgerState": "quire.codec.metadata.ledger_metadata:LedgerState",
            "LedgerWriter": "quire.client:LedgerWriter",
            "LoadedConfig": "quire.configuration.load:LoadedConfig",
            "PlacementConfig": "quire.config:PlacementConfig",
            "Publication": "quire.client.datasets.datasets:Publication",
            "Segment": "quire.codec.metadata.ledger_metadata:Segment",
            "TlsClientConfig": "quire.config:TlsClientConfig",
            "TlsServerConfig": "quire.config:TlsServerConfig",
            "UnhealthyBookie": "quire.client.cluster.health:UnhealthyBookie",
            "ZooKeeperOptions": "quire.metadata:ZooKeeperOptions",
            "blocking": "quire.blocking",
            "collect_on_demand": "quire._runtime.heap:collect_on_demand",
            "connect": "quire.api:connect",
            "keep_heap": "quire._runtime.heap:keep_heap",
            "load_config": "quire.configuration.load:load_config",
        },
    )
    __getattr__ = former_names(__name__, {"Suspect": "UnhealthyBookie"}, _present)

# A library prints nothing unless the program asks for it (docs/guides/cluster/logging.md).
logging.getLogger("quire").addHandler(logging.NullHandler())

__version__ = "0.2.0"

__all__ = [
    "BookieConfig",
    "BookieInfo",
    "CallerIdWriter",
    "Client",
    "ClientConfig",
    "Dataset",
    "DatasetLedger",
    "DigestType",
    "Entry",
    "EntryRun",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "LoadedConfig",
    "PlacementConfig",
    "Publication",
    "QuireError",
    "Segment",
    "TlsClientConfig",
    "TlsServerConfig",
    "UnhealthyBookie",
    "ZooKeeperOptions",
    "blocking",
    "collect_on_demand",
    "connect",
    "errors",
    "keep_heap",
    "load_config",
]
