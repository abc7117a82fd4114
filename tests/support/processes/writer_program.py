"""A writer in a separate process, to be stopped and killed by tests.

    python writer_program.py URI ENSEMBLE WRITE_QUORUM ACK_QUORUM PIECE PAUSE_MS

The program prints `ledger ID`, then `acked LAST` after each acknowledged piece. It ends with
`closed LAST` when its standard input ends, or with `failed ERRORNAME` if appends fail for good. It
pauses for PAUSE_MS milliseconds after each burst of pieces, because nobody needs more while a
bookie starts.
"""

from __future__ import annotations

import asyncio
import sys

import quire
from quire.errors import QuireError

BURST = 20
"""The number of pieces in a burst. Tests disturb bookies in the middle of one."""


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Return the payload that a test expects: different for every entry, with different sizes."""
    text = b"%d:%d;" % (ledger_id, entry_id)
    return text * (1 + entry_id % 61)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(uri: str, ensemble: int, write: int, ack: int, piece: int, pause_ms: int) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    config = quire.ClientConfig(add_timeout_s=1.0)
    async with quire.connect(uri, config=config) as client:
        writer = await client.create_ledger(
            ensemble_size=ensemble, write_quorum=write, ack_quorum=ack
        )
        say("ledger", writer.ledger_id)
        upcoming = 0
        try:
            while not ended.done():
                last = upcoming + piece - 1
                await writer.append_many(
                    [payload(writer.ledger_id, e) for e in range(upcoming, last + 1)]
                )
                say("acked", last)
                upcoming = last + 1
                if upcoming % (BURST * piece) == 0:
                    await asyncio.sleep(pause_ms / 1000)
            say("closed", await writer.close())
        except QuireError as error:
            say("failed", type(error).__name__)
            sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:7])))
