"""A stream's writer in a separate process, to be killed by tests.

    python stream_program.py URI NAMESPACE STREAM PIECE LAST

The program appends the records 0, 1, 2 ... as one producer, starting after the last record in the
stream. It prints `begin NEXT`, then `acked N` after each acknowledged piece up to record LAST, then
`done`. It prints `failed ERRORNAME` and ends if appends fail for good.
"""

from __future__ import annotations

import asyncio
import sys

import quire
from quire.errors import QuireError
from quire.streams.namespace.namespace import open_namespace

PRODUCER = "numbers"


def payload(number: int) -> bytes:
    return b"%d;" % number * (1 + number % 17)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(uri: str, path: str, stream: str, piece: int, last: int) -> None:
    async with quire.connect(uri) as client, await open_namespace(client, path) as streams:
        try:
            writer = await streams.open_writer(stream)
            producer = await writer.producer(PRODUCER)
            upcoming = producer.last_sequence + 1
            say("begin", upcoming)
            while upcoming <= last:
                # Sometimes a piece is sent twice in a row, as after a lost answer.
                first = max(0, upcoming - (piece if upcoming % 3 == 0 else 0))
                end = min(last + 1, upcoming + piece)
                await producer.append_many([payload(n) for n in range(first, end)], first)
                upcoming = end
                say("acked", upcoming - 1)
            await writer.close()
            say("done")
        except QuireError as error:
            say("failed", type(error).__name__)
            sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], *map(int, sys.argv[4:6])))
