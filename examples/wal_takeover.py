"""A bank that keeps its balances in memory, and its changes in a write-ahead log.

    python wal_takeover.py

Type changes, such as `alice 5` or `bob -3`, one a line. Each is confirmed once it is durable. Start
a second copy at any time: it takes over with all balances, and the first copy can change nothing
any more. QUIRE_METADATA names the cluster.
"""

from __future__ import annotations

import os
import sys

import quire
from quire.errors import QuireError, StreamFencedError


class Bank:
    def __init__(self) -> None:
        self.balances: dict[str, int] = {}

    def check(self, line: str) -> None:
        """Raise ValueError for a change that must not get into the log."""
        name, amount = line.split()
        if self.balances.get(name, 0) + int(amount) < 0:
            raise ValueError(f"{name} has too little")

    def apply(self, line: str) -> str:
        name, amount = line.split()
        self.balances[name] = self.balances.get(name, 0) + int(amount)
        return f"{name} has {self.balances[name]}"


def serve(uri: str) -> None:
    bank = Bank()
    with (
        quire.blocking.connect(uri) as client,
        client.namespace("/bank", create=True) as streams,
        # Open the writer before reading. This fences the copy that ran before, so that nothing can
        # be appended after the end of what is read here.
        streams.open_writer("changes", create=True) as log,
    ):
        for record in streams.open_reader("changes"):
            bank.apply(record.payload.decode())
        print(f"ready: {bank.balances}", flush=True)

        for line in map(str.strip, sys.stdin):
            try:
                bank.check(line)
                log.append(line.encode())  # on the disks of two bookies when it returns
            except ValueError as error:  # RecordTooLargeError, too: nothing was appended
                print(f"refused: {error}", flush=True)
                continue
            # Change the state, and confirm, only after the log has the change.
            print(bank.apply(line), flush=True)


def main() -> int:
    try:
        serve(os.environ["QUIRE_METADATA"])
    except StreamFencedError:
        print("another copy has taken over", file=sys.stderr)
        return 1
    except QuireError as error:
        # The last change may be in the log or not. Do not guess: end here, and start again. The
        # next start reads the log, and then it is certain.
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
