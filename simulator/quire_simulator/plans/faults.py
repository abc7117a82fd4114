"""The schedule of faults: a list of timed values, determined by the seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

AT_A_MOMENT = 0.4
"""The probability that a fault comes shortly after some client begins."""
CLOSE_S = 0.3
ZOMBIE_S = 1.2
"""The shortest pause of a writer that becomes a zombie, longer than add timeouts, so that others
notice.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One scheduled fault.

    `target` names a bookie or a client. "ledger-N" means a bookie of that ledger's last ensemble,
    and "stream-N" one of that stream's newest ledger. `other` is the other side of a partition.
    `amount`, from 0 to 1, scales a fault that has a size. A lasting fault is undone after
    `duration_s`.
    """

    at_s: float
    kind: str
    target: str = ""
    duration_s: float = 0.0
    other: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        what = " ".join(part for part in (self.kind, self.target, self.other) if part)
        lasts = f" for {self.duration_s:.3f} s" if self.duration_s else ""
        return f"{self.at_s:9.4f} {what}{lasts} ({self.amount:.3f})"


BETWEEN_TWO = ("cut", "cut one way", "cut and reset", "lose connections")
WHOLE = (
    "slow network",
    "metadata fails",
    "late watches",
    "sessions expire",
    "rolling restart",
    "rolling crash",
    "power loss everywhere",
)
BOOKIE_KINDS = (
    "crash",
    "crash",
    "crash in write",
    "kill",
    "kill, start, crash",
    "crash in start",
    "restart",
    "pause",
    "slow disk",
    "expire session",
    "fsync fails",
    "fsync fails, crash",
    "write fails",
    "disk full",
    "clock jumps",
)
FULL_KINDS = (
    "full at fence",
    "full at LAC",
    "full at force",
    "full at compaction",
    "full at directory record",
    "full at index cache",
)
"""The disk of a bookie fills at the moment that the kind names, and is full for a while."""
MEMBER_KINDS = ("crash member", "crash member in write", "crash fastest member")
RESET_KINDS = ("reset recovery",)
"""Faults that reset connections from recoverers of a ledger to one bookie of its last ensemble."""
ISLAND_KINDS = ("cut off",)
"""Clients that lose all bookies at once, as if a switch between them restarted."""
SILENT_CLIENT_KINDS = ("silence client",)
"""The connections of a client to all bookies die silently, as if a firewall forgot them."""
SILENT_KINDS = (*SILENT_CLIENT_KINDS, "silence bookie")
"""The connections of a client to all bookies, or of all clients to one bookie, die silently."""
FLOW_KINDS = ("silence flow", "silence answers", "silence requests")
"""One connection between a client and a bookie dies silently, or one direction of a client's
connections to all bookies.
"""
MOVE_KINDS = ("move bookie",)
"""A bookie loses its machine, and comes back at another address."""
DISORDER_KINDS = ("answers in disorder", "requests in disorder", "late answer")
"""A bookie handles or answers requests in another order, or answers a few of them late."""
HOSTILE_KINDS = (
    "hostile reads",
    "hostile reads, gone",
    "hostile polls",
    "hostile half frames",
    "hostile silence",
)
"""Clients without a key that want a bookie to fail."""
CLIENT_KINDS = ("pause client", "kill client", "slow metadata")
WRITER_KINDS = ("zombie",)
JOB_KINDS = ("kill job",)
INDEX_KINDS = ("lose index", "old index", "rot index", "foreign index")
"""Faults of the index cache of a bookie that is down."""
LOAD_KINDS = ("crash in load", "stop in load")
"""Faults that end a slowly starting bookie before it has loaded its log."""
DIRECTORY_KINDS = ("directory fails", "directory away", "directory away")
"""Faults of one data directory of a bookie that has several."""
DISK_ERROR_KINDS = ("fsync fails", "fsync fails, crash", "write fails")
"""Errors of a disk, which end a directory of a bookie that has several."""
REPLACEMENT_KINDS = ("replace directory", "replace good directory", "old disk comes back")
"""Replacements of disks of bookie-0. The first kind damages it."""
ROLLBACK_KINDS = ("roll directory back",)
"""Faults that restore a directory of bookie-0 from an older copy of itself."""
LOG_FILE_KINDS = (
    "lose segment",
    "lose newest segments",
    "lose prepared segments",
    "swap segments",
    "old segment",
)
"""Faults of single files in the log of bookie-0 while it is down."""
RESIZE_KINDS = ("add directory", "take directory away", "take directory away")
"""Changes by operators, made while the bookie is down."""
UNREADABLE_KINDS = ("unreadable ledger", "unreadable mark", "stray mark", "unreadable cookie")
"""Single items of the metadata store that cannot be read."""
RECREATION_KINDS = ("recreate ledger",)
"""Ledgers that are deleted and created again under the same id."""
SESSION_KINDS = ("expire client",)
"""Sessions of clients that end, and begin again a while later."""
OLDER_KINDS = ("metadata goes back", "collection off")
"""Restores of the metadata store from an older copy, and the switch for such times."""
LAG_KINDS = ("metadata lags",)
"""Servers of the metadata store that lag behind the others."""
HEALER_KINDS = ("kill healer", "pause healer", "expire healer")
ALL_KINDS = (
    *BOOKIE_KINDS, *MEMBER_KINDS, *CLIENT_KINDS, *WRITER_KINDS, *BETWEEN_TWO, *WHOLE,
    *DISORDER_KINDS, *FLOW_KINDS, *MOVE_KINDS, *FULL_KINDS[:3], *HOSTILE_KINDS[:1],
    "unreadable ledger", "unreadable cookie", "expire client",
)  # fmt: skip
LIES = ("deny", "forge", "garble", "swap", "drop", "ignore fence")
RACK_KINDS = ("lose rack", "relocate")
FIRST_BOOKIE_KINDS = ("rot", "rot, crash", "rot entries, crash", "flip", "lose disk")
"""Faults that do lasting damage. They all strike the same bookie."""
OF_BOOKIE_0 = frozenset(
    (*FIRST_BOOKIE_KINDS, *LIES, *REPLACEMENT_KINDS, *ROLLBACK_KINDS, *LOG_FILE_KINDS)
)


def make_schedule(
    chance: random.Random,
    *,
    kinds: Sequence[str],
    count: int,
    span_s: float,
    bookies: Sequence[str],
    clients: Mapping[str, float],
    ledgers: int,
    streams: int = 0,
) -> tuple[Fault, ...]:
    """Draw `count` faults of these kinds within `span_s`. `clients` maps clients to their begin."""
    faults = []
    for _ in range(count):
        kind = chance.choice(list(kinds))
        target = _target(chance, kind, bookies, list(clients), ledgers, streams)
        others = [name for name in (*bookies, *clients) if name != target]
        if target in clients:
            others = list(bookies)
        # The square makes most durations short and some long.
        duration_s = 0.05 + chance.random() ** 2 * span_s / 3
        at_s = chance.random() * span_s
        if chance.random() < AT_A_MOMENT:
            begin_s = chance.choice(_moments(target, clients))
            at_s = begin_s + chance.random() ** 2 * CLOSE_S
            if kind in BETWEEN_TWO:
                duration_s = chance.random() ** 2 * CLOSE_S
        if kind in WRITER_KINDS:
            duration_s = ZOMBIE_S + chance.random() * span_s / 2
        faults.append(
            Fault(
                at_s=round(at_s, 6),
                kind=kind,
                target=target,
                duration_s=round(duration_s, 6),
                other=chance.choice(others) if kind in (*BETWEEN_TWO, *FLOW_KINDS) else "",
                amount=round(chance.random(), 6),
            )
        )
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _moments(target: str, clients: Mapping[str, float]) -> list[float]:
    """Return the times at which something begins that involves this target."""
    if target in clients:
        return [clients[target]]
    what, _, number = target.partition("-")
    if what not in ("ledger", "stream"):
        return list(clients.values())
    return [at for name, at in clients.items() if _ledger_of(name) == number]


def _ledger_of(client: str) -> str:
    return client.partition("-")[2].partition(".")[0]


def _target(
    chance: random.Random,
    kind: str,
    bookies: Sequence[str],
    clients: Sequence[str],
    ledgers: int,
    streams: int,
) -> str:
    if kind in (*WHOLE, *RACK_KINDS, *UNREADABLE_KINDS, *OLDER_KINDS, *LAG_KINDS):
        return ""
    if kind in OF_BOOKIE_0:
        return bookies[0]
    if kind in JOB_KINDS:
        return chance.choice([name for name in clients if name.startswith("job-")])
    if kind in HEALER_KINDS:
        return chance.choice([name for name in clients if name.startswith("healer-")])
    alone = (
        *CLIENT_KINDS, *SESSION_KINDS, *ISLAND_KINDS, *SILENT_CLIENT_KINDS, *FLOW_KINDS,
    )  # fmt: skip
    if kind in alone or (kind in BETWEEN_TWO and chance.random() < 0.5):
        return chance.choice(clients)
    if kind in (*RESET_KINDS, *RECREATION_KINDS):
        return f"ledger-{chance.randrange(ledgers)}"
    if kind in (*MEMBER_KINDS, *WRITER_KINDS) and ledgers + streams:
        number = chance.randrange(ledgers + streams)
        if number >= ledgers:
            name = f"stream-{number - ledgers}"
            of_it = [c for c in clients if c.startswith(name.replace("stream", "streamer") + ".")]
            return name if kind in MEMBER_KINDS else chance.choice(of_it)
        return f"ledger-{number}" if kind in MEMBER_KINDS else f"writer-{number}"
    return chance.choice(bookies)
