"""A separate program that writes records to a stream until it is killed.

    apache NAMESPACE_URI STREAM FIRST
    quire METADATA_URI NAMESPACE STREAM FIRST

Record N has txid N and N in decimal as its payload. The program prints the number of a record once
that record and all before it are acknowledged.
"""

from __future__ import annotations

import itertools
import sys

from tests.support.interop.apache_streams import ApacheStreams
from tests.support.interop.quire_streams import QuireStreams
from tests.support.interop.stream_sides import Streams

TOGETHER = 5


def main(side: str, *where: str) -> None:
    *rest, stream, first = where
    streams: Streams = (
        ApacheStreams(*rest, maxLogSegmentBytes=2_000)
        if side == "apache"
        else QuireStreams.make(*rest, roll_bytes=2_000)
    )
    writer = streams.writer(stream)
    for number in itertools.count(int(first), TOGETHER):
        numbers = range(number, number + TOGETHER)
        writer.write_all([(each, b"%d" % each) for each in numbers])
        print(numbers[-1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
