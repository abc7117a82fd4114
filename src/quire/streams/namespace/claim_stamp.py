"""The stamp of a claim: the value of the node of a stream's life, which says who may write.

    1000185c83e0002-27                  a writer, or a program that renames or mirrors the stream
    1000185c83e0002-28 sink w/orders    sinks, which publish whole batches

The first word distinguishes the claim from all others. A writer owns its claim alone. Sinks share
theirs: each of them may publish under it, and the version of the node `ledgers` decides which of
two publications is first. Versions of Quire that do not know sinks read every stamp as that of
another writer.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

SINK = "sink"


def sink_stamp(unique: str, sink: str) -> str:
    """Return the stamp of a claim that the sink with this name makes for all sinks."""
    return f"{unique} {SINK} {quote(sink, safe='/')}"


def is_sink(stamp: str) -> bool:
    """Return whether sinks hold the claim with this stamp."""
    return stamp.split(" ")[1:2] == [SINK]


def claimant(stamp: str) -> str:
    """Return a description of the program that made the claim, for error messages."""
    unique, _, rest = stamp.partition(" ")
    session = unique.partition("-")[0]
    where = f"session 0x{session} of the metadata store" if session else "another program"
    if not is_sink(stamp):
        return f"a writer ({where})"
    return f"sink {unquote(rest.partition(' ')[2])} ({where})"
