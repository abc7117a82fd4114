"""A consumer that follows a stream, and continues where it was after a crash.

    python tailing_consumer.py NAMESPACE STREAM OUTPUT

It appends each record to the file OUTPUT, after the sequence of the record. The cluster keeps the
position of the consumer in the subscription `files`. Each record is handled at least once: after a
crash the records of one batch may be handled again, and their sequences show it. Ctrl-C and SIGTERM
end the consumer. QUIRE_METADATA names the cluster.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import BinaryIO

import quire
from quire.errors import MetadataUnavailableError, QuireError, ReadError, RecoveryError
from quire.streams import EARLIEST, Gap

RETRY_S = 2.0


async def follow(client: quire.Client, namespace: str, stream: str, output: BinaryIO) -> None:
    async with client.namespace(namespace) as streams:
        subscription = streams.subscription(stream, "files")
        start = await subscription.position() or EARLIEST
        print(f"reading from {start}", flush=True)
        reader = await streams.open_reader(stream, start=start, follow=True, on_gap="deliver")
        async for batch in reader.batches():
            if isinstance(batch, Gap):
                # Records were truncated before they were read, or lost. Without `on_gap` this would
                # be a StreamGapError: choose that where a consumer must not go on.
                print(f"warning: {batch}", file=sys.stderr)
                continue
            records = list(batch)
            output.write(b"".join(b"%d %s\n" % (one.sequence, one.payload) for one in records))
            output.flush()
            os.fsync(output.fileno())
            # Commit after the work is durable, never before. Each commit is a write to the metadata
            # store: with hundreds of batches a second, commit every second instead.
            await subscription.commit(records[-1].position.next_slot())
            print(f"handled up to record {records[-1].sequence}", flush=True)


async def run(namespace: str, stream: str, output: BinaryIO) -> int:
    while True:
        try:
            async with quire.connect(os.environ["QUIRE_METADATA"]) as client:
                await follow(client, namespace, stream, output)
            return 0  # somebody has ended the stream for good
        except (MetadataUnavailableError, ReadError, RecoveryError) as error:
            # The metadata store or too many bookies do not answer. The position is stored, so that
            # it is safe to try again.
            print(f"trying again in {RETRY_S:g} s: {error}", file=sys.stderr)
            await asyncio.sleep(RETRY_S)
        except QuireError as error:
            print(f"stopped: {error}", file=sys.stderr)
            return 1


async def main(namespace: str, stream: str, output: BinaryIO) -> int:
    running = asyncio.create_task(run(namespace, stream, output))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        return 0  # what was read and not committed comes again at the next start


if __name__ == "__main__":
    with open(sys.argv[3], "ab") as file:
        sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2], file)))
