"""The blocking API: the names of the asyncio API without `await`, for scripts and notebooks.

    import quire

    with quire.blocking.connect(uri) as client:
        with client.create_ledger() as ledger:
            ledger.append(b"once acknowledged, this entry is fsynced on a quorum")
        with client.namespace("/team", create=True) as team:
            for record in team.open_reader("orders"):
                print(record.payload)

scripts/make-blocking writes `client`, `ledgers`, `datasets`, `streams`, `objects` and
`statemachine` from the asyncio API. Read `background`, which has the event loop that runs the
calls, and `handles`, which has the common parts of the classes, first. This package may import
`quire.api` and everything that `quire.api` may import.
"""

from typing import TYPE_CHECKING

from quire._runtime.names.lazy import lazily

if TYPE_CHECKING:
    from quire.blocking.client import Client, connect
    from quire.blocking.datasets import Datasets
    from quire.blocking.ledgers import CallerIdWriter, LedgerReader, LedgerWriter
    from quire.blocking.objects import ObjectReader, Objects
    from quire.blocking.statemachine import DurableDict, Follower, Leader
    from quire.blocking.streams import (
        Appended,
        Namespace,
        Producer,
        StreamReader,
        StreamWriter,
        Subscription,
        Topic,
        TopicAppended,
        TopicReader,
        TopicWriter,
    )
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "Appended": "quire.blocking.streams:Appended",
            "CallerIdWriter": "quire.blocking.ledgers:CallerIdWriter",
            "Client": "quire.blocking.client:Client",
            "Datasets": "quire.blocking.datasets:Datasets",
            "DurableDict": "quire.blocking.statemachine:DurableDict",
            "Follower": "quire.blocking.statemachine:Follower",
            "Leader": "quire.blocking.statemachine:Leader",
            "LedgerReader": "quire.blocking.ledgers:LedgerReader",
            "LedgerWriter": "quire.blocking.ledgers:LedgerWriter",
            "Namespace": "quire.blocking.streams:Namespace",
            "ObjectReader": "quire.blocking.objects:ObjectReader",
            "Objects": "quire.blocking.objects:Objects",
            "Producer": "quire.blocking.streams:Producer",
            "StreamReader": "quire.blocking.streams:StreamReader",
            "StreamWriter": "quire.blocking.streams:StreamWriter",
            "Subscription": "quire.blocking.streams:Subscription",
            "Topic": "quire.blocking.streams:Topic",
            "TopicAppended": "quire.blocking.streams:TopicAppended",
            "TopicReader": "quire.blocking.streams:TopicReader",
            "TopicWriter": "quire.blocking.streams:TopicWriter",
            "connect": "quire.blocking.client:connect",
        },
    )

__all__ = [
    "Appended",
    "CallerIdWriter",
    "Client",
    "Datasets",
    "DurableDict",
    "Follower",
    "Leader",
    "LedgerReader",
    "LedgerWriter",
    "Namespace",
    "ObjectReader",
    "Objects",
    "Producer",
    "StreamReader",
    "StreamWriter",
    "Subscription",
    "Topic",
    "TopicAppended",
    "TopicReader",
    "TopicWriter",
    "connect",
]
