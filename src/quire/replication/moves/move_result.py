"""What a job that takes a bookie out of its ledgers has found and done: the same for one process
(`quire.replication.moves.move`) and for Spark's tasks (`quire.spark.jobs.recover`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from quire._runtime.suggest import did_you_mean
from quire.client import Client
from quire.errors import UsageError
from quire.metadata.ledgers.unreadable import Unread
from quire.replication.repair.ledger import LedgerWork, Move, Work

LOCKED_ROUNDS = 3
"""How often ledgers that others work on, or that are open, are looked at again."""
LEDGERS_PER_LOOK = 2_000
"""Whose metadata is read in one go."""


@dataclass(frozen=True, slots=True)
class Left:
    ledger: int
    why: str


@dataclass(frozen=True, slots=True)
class RecoverResult:
    bookie: str
    dry_run: bool
    moves: tuple[Move, ...]
    """What there was to do when the job began."""
    ledgers: int = 0
    """That do not name the bookie any more (or are gone)."""
    fragments: int = 0
    """Segments in which it was replaced by this run."""
    entries: int = 0
    bytes: int = 0
    """Payload that was copied."""
    recovered: tuple[int, ...] = ()
    """Ledgers whose writers were gone: they were fenced and closed."""
    open: tuple[int, ...] = ()
    """Ledgers that are still written, with the bookie in their last segment. Run it again later."""
    locked: tuple[int, ...] = ()
    """Ledgers that somebody else replicates."""
    failed: tuple[Left, ...] = ()
    unreadable: tuple[Left, ...] = ()
    """Some of the ledgers whose metadata cannot be read. They may name the bookie."""
    unreadable_count: int = 0
    """The number of these ledgers."""

    @property
    def complete(self) -> bool:
        """Whether it is certain that no ledger names the bookie any more."""
        return not (self.open or self.locked or self.failed or self.unreadable_count) and (
            not self.dry_run or not self.moves
        )

    def as_json(self, limit: int | None = None) -> dict[str, Any]:
        """`limit`: at most so many ledgers in each list; `left` counts all of them."""
        described = asdict(self)
        for name in ("moves", "recovered", "open", "locked", "failed", "unreadable"):
            described[name] = described[name][:limit]
        return {
            **described,
            "to_move": {
                "ledgers": len(self.moves),
                "entries": sum(one.entries for one in self.moves),
                "bytes": sum(one.bytes for one in self.moves),
            },
            "left": {
                "open": len(self.open),
                "locked": len(self.locked),
                "failed": len(self.failed),
                "unreadable": described.pop("unreadable_count"),
            },
            "complete": self.complete,
        }


async def check_bookie(client: Client, bookie: str, even_if_alive: bool) -> None:
    """UsageError for a bookie that is alive, or as `check_known`."""
    bookies = await client.bookies()
    if bookies.find(bookie) is not None:
        if not even_if_alive:
            raise UsageError(
                f"bookie {bookie} is alive: nothing of it is lost",
                remedy="Stop it first, if it is not to come back; or take it away with "
                "`quire bookie decommission`",
            )
        return
    await check_known(client, bookie)


async def check_known(client: Client, bookie: str) -> None:
    """UsageError for what looks like a slip of the pen."""
    bookies = await client.bookies()
    cookies = await client.metadata.list_cookies()
    known = sorted({*cookies, *bookies.writable, *bookies.readonly})
    if bookie not in known and (hint := did_you_mean(bookie, known)):
        raise UsageError(f"no bookie {bookie} is known", remedy=hint)


def not_tried(ledger_id: int) -> LedgerWork:
    return LedgerWork(ledger_id, Work.FAILED, reason="not tried")


def added(before: LedgerWork, now: LedgerWork) -> LedgerWork:
    """`now`, with what was done before."""
    return replace(
        now,
        fragments=before.fragments + now.fragments,
        entries=before.entries + now.entries,
        size_bytes=before.size_bytes + now.size_bytes,
        recovered=before.recovered or now.recovered,
    )


def with_unread(result: RecoverResult, unread: Unread) -> RecoverResult:
    """Return the result with the ledgers that could not be read in the search for the bookie."""
    named = tuple(Left(ledger, why) for ledger, why in unread.named.items())
    return replace(result, unreadable=named, unreadable_count=len(unread))


def result_of(bookie: str, moves: Iterable[Move], work: Sequence[LedgerWork]) -> RecoverResult:
    def which(*kinds: Work) -> tuple[int, ...]:
        return tuple(one.ledger for one in work if one.work in kinds)

    return RecoverResult(
        bookie,
        False,
        tuple(moves),
        ledgers=len(which(Work.DONE, Work.GONE)),
        fragments=sum(one.fragments for one in work),
        entries=sum(one.entries for one in work),
        bytes=sum(one.size_bytes for one in work),
        recovered=tuple(one.ledger for one in work if one.recovered),
        open=which(Work.OPEN),
        locked=which(Work.LOCKED),
        failed=tuple(Left(one.ledger, one.reason) for one in work if one.work is Work.FAILED),
    )
