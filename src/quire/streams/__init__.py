"""Streams and their namespaces, objects, and replicated state machines, built on ledgers.

    async with client.namespace("/streams", create=True) as streams:
        async with streams.open_writer("orders", create=True) as writer:
            await writer.append(b"acknowledged means: on disk, fsynced, on a quorum")
        async for record in streams.open_reader("orders"):
            print(record.sequence, record.payload)

The package `quire.blocking` has the same names without `await`.
"""

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.name import StreamPaths, stream_name
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.streams.namespace.namespace import Namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.objects.objects import Objects
from quire.streams.ownership.owners import refuse_owned
from quire.streams.read.positions import EARLIEST, LATEST, AtSequence, AtTime, AtTxid
from quire.streams.read.reader import StreamReader
from quire.streams.read.records import Gap, KeyedRecord, Record, RecordBatch
from quire.streams.read.subscriptions import Subscription
from quire.streams.topics.reader import TopicBatch, TopicReader, TopicRecord
from quire.streams.topics.topic import Topic
from quire.streams.topics.writer import TopicAppended, TopicPosition, TopicWriter
from quire.streams.write.pending_entry import Appended
from quire.streams.write.writer import Producer, StreamWriter

__all__ = [
    "DLSN",
    "EARLIEST",
    "LATEST",
    "Appended",
    "AtSequence",
    "AtTime",
    "AtTxid",
    "Gap",
    "KeyedRecord",
    "Namespace",
    "Objects",
    "Producer",
    "Record",
    "RecordBatch",
    "StreamPaths",
    "StreamReader",
    "StreamSegment",
    "StreamSettings",
    "StreamWriter",
    "Subscription",
    "Topic",
    "TopicAppended",
    "TopicBatch",
    "TopicPosition",
    "TopicReader",
    "TopicRecord",
    "TopicWriter",
    "Truncation",
    "refuse_owned",
    "stream_name",
]
