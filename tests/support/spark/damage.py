"""Ledgers on real bookies, and damage to single replicas of their entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quire import blocking
from quire.blocking.background import call
from quire.client import Client
from quire.core.fragments import stored_by
from quire.core.replicas import Copies
from quire.metadata.ledgers.update import update_ledger
from quire.replication.repair.opened_ledger import open_for_repair
from quire.replication.repair.recovery_adds import RecoveryAdds
from quire.testing.cluster import BookieProcess, LocalCluster
from tests.support.waiting import wait_for

PASSWORD = b"pw"
SESSION_MS = 2_000
BOOKIE_ARGS = ["--set", f"session_timeout_s={SESSION_MS / 1000}"]


def payload(ledger: int, entry: int, size: int) -> bytes:
    head = b"%d/%d." % (ledger, entry)
    return head * (size // len(head) + 1)


def process_of(cluster: LocalCluster, bookie: str) -> BookieProcess:
    return next(one for one in cluster.bookies if one.id == bookie)


def write(
    client: blocking.Client,
    entries: int,
    size: int,
    *,
    quorums: tuple[int, int, int] = (3, 3, 2),
    digest: str = "crc32c",
    close: bool = True,
) -> blocking.LedgerWriter:
    """Write a ledger, and return its writer when all members have their entries."""
    writer = client.create_ledger(
        ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2],
        digest=digest, password=PASSWORD,
    )  # fmt: skip
    ledger_id = writer.ledger_id
    if entries:
        writer.append_many([payload(ledger_id, entry, size) for entry in range(entries)])
        metadata = client.ledger_metadata(ledger_id)
        for index, bookie in enumerate(metadata.segments[0].ensemble):
            wanted = list(stored_by(metadata, index, 0, entries - 1))

            def there(bookie: str = bookie, wanted: Sequence[int] = wanted) -> bool:
                return entries_on(client, bookie, ledger_id) == wanted

            wait_for(there, f"{bookie} has its part of ledger {ledger_id}")
    if close:
        writer.close()
    return writer


def entries_on(client: blocking.Client, bookie: str, ledger_id: int) -> list[int]:
    from quire.errors import NoSuchEntryError

    try:
        ranges = client.list_entries(bookie, ledger_id)
    except NoSuchEntryError:
        return []
    return [entry for first, last in ranges for entry in range(first, last + 1)]


def ensemble(client: blocking.Client, ledger_id: int) -> tuple[str, ...]:
    (segment,) = client.ledger_metadata(ledger_id).segments
    return segment.ensemble


def swap_for_empty(
    client: blocking.Client, ledger_id: int, index: int, new: str, but: Sequence[int]
) -> None:
    """Replace a member of the ensemble by `new`, which gets only the entries in `but`.

    To readers it seems that `new` has lost the other entries.
    """
    call(_swap(client.aio, ledger_id, index, new, but))


async def _swap(client: Client, ledger_id: int, index: int, new: str, but: Sequence[int]) -> None:
    ledger = await open_for_repair(client, ledger_id)
    async with await client.open_ledger(ledger_id, password=PASSWORD) as reader:
        found = [entry async for entry in reader.read()]
    chosen = [entry for entry in found if entry.entry_id in but]
    if chosen:
        async with RecoveryAdds(client, ledger, new) as adds:
            await adds.write(
                Copies(
                    [entry.entry_id for entry in chosen],
                    [entry.payload for entry in chosen],
                    [entry.ledger_length for entry in chosen],
                )
            )
    (segment,) = ledger.metadata.segments
    members = list(segment.ensemble)
    members[index] = new
    swapped = replace(ledger.metadata, segments=(replace(segment, ensemble=tuple(members)),))
    await update_ledger(
        client.metadata, ledger_id, ledger.stored, lambda now: None if now == swapped else swapped
    )


def flip(bookie: BookieProcess, content: bytes) -> None:
    """Flip one bit in the middle of `content`, wherever the stopped bookie stores it."""
    found = 0
    for path in sorted(Path(bookie.directory).rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        at = data.find(content)
        while at >= 0:
            found += 1
            with path.open("r+b") as file:
                middle = at + len(content) // 2
                file.seek(middle)
                file.write(bytes([data[middle] ^ 0x10]))
            at = data.find(content, at + 1)
    assert found, f"{bookie.name} does not have it"
