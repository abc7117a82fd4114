"""The metadata of a deleted ledger, made again from the entries that bookies still hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quire._runtime.tasks import each
from quire._runtime.units import counted, some_of
from quire.client.client import CTOKEN_BITS
from quire.codec.metadata.ledger_metadata import NO_ENTRY, LedgerState, Segment
from quire.errors import JobRefusedError, LedgerExistsError, NoSuchEntryError, NoSuchLedgerError
from quire.metadata.bookies.collection import read_switch

if TYPE_CHECKING:
    from quire.client import Client

Held = Mapping[str, Sequence[tuple[int, int]]]
"""Ranges of entry ids, each with its first and its last id, by the bookie that holds them."""
RANGES_MAX = 100_000
"""The largest number of ranges of one bookie. A striped ledger has one for every few entries."""
STREAM_KEYS = {"application", "component", "stream"}
"""The keys of custom metadata that all ledgers of a stream share."""


async def recreate_metadata(client: Client, ledger_id: int, like: int) -> None:
    """Create the metadata of a deleted ledger as an open ledger, which recovery can then close.

    The quorums, the digest and the password are those of the ledger `like`. The ensembles are made
    of the bookies that hold the entries. All registered bookies are asked. Nothing is written if an
    error is raised before the creation.

    Args:
        client: An open client.
        ledger_id: The id of the deleted ledger.
        like: The id of a ledger that was created with the same settings, by the same application.

    Raises:
        LedgerExistsError: The ledger exists.
        NoSuchLedgerError: The ledger `like` does not exist.
        NoSuchEntryError: No bookie holds an entry of the ledger.
        JobRefusedError: Garbage collection is not switched off, a bookie of the cluster is not
            registered, the ledger is striped, or too few bookies hold the entries.
        BookieError: A bookie did not say which entries it holds.
        MetadataError: The metadata store fails. It is unknown whether the metadata was created.
    """
    store = client.metadata
    try:
        await client.ledger_metadata(ledger_id)
    except NoSuchLedgerError:
        pass
    else:
        raise LedgerExistsError(
            f"ledger {ledger_id} exists, so its metadata was not made again",
            remedy=f"To close it: quire ledger recover {ledger_id}",
        )
    sample = await client.ledger_metadata(like)
    if await read_switch(store) is None:
        raise JobRefusedError(
            f"the metadata of ledger {ledger_id} was not made again: garbage collection is not "
            "switched off, so bookies may be deleting the entries now",
            remedy="Run quire cluster gc off, and repeat the command",
        )
    registered = await client.bookies()
    held = await _held(client, ledger_id, sorted({*registered.writable, *registered.readonly}))
    if sample.ensemble_size > sample.write_quorum or any(
        len(found) > RANGES_MAX for found in held.values()
    ):
        raise JobRefusedError(
            f"the metadata of ledger {ledger_id} cannot be made again: its entries are striped "
            f"over an ensemble that is larger than the write quorum, as those of ledger {like}",
            remedy="Restore a backup of the metadata store",
        )
    custom = dict(sample.custom) if set(sample.custom) <= STREAM_KEYS else {}
    metadata = replace(
        sample,
        segments=ensembles(
            ledger_id, held, sample.ensemble_size, sample.ack_quorum, sorted(registered.writable)
        ),
        state=LedgerState.OPEN,
        last_entry_id=NO_ENTRY,
        length=0,
        custom=custom,
        ctime_ms=client.clock.now_ms(),
        ctoken=client.rng.getrandbits(CTOKEN_BITS),
    )
    await store.create_ledger(metadata, ledger_id)


async def _held(client: Client, ledger_id: int, names: Sequence[str]) -> Held:
    """Return which entries of a ledger the registered bookies, which have these `names`, hold.

    A bookie without any is left out. Raises JobRefusedError, NoSuchEntryError, BookieError and
    MetadataError as `recreate_metadata` does.
    """
    away = sorted({*await client.metadata.list_cookies()} - {*names})
    if away:
        # They may hold the last acknowledged entries, and recovery would close the ledger before
        # these.
        raise JobRefusedError(
            f"the metadata of ledger {ledger_id} was not made again: these bookies are not "
            f"registered, and may hold entries that no other one has: {some_of(away)}",
            remedy="Start them, and repeat the command. If one is lost for good, remove it first: "
            "quire bookie decommission BOOKIE",
        )

    async def ask(bookie: str) -> Sequence[tuple[int, int]]:
        try:
            found = await client.list_entries(bookie, ledger_id)
        except NoSuchEntryError:
            return ()
        # A list is made of ranges when they are needed, and may have billions of them.
        return tuple(found[at] for at in range(min(len(found), RANGES_MAX + 1)))

    answers = await each(names, ask)
    held = {bookie: found for bookie, found in zip(names, answers, strict=True) if found}
    if not held:
        raise NoSuchEntryError(
            f"none of the {counted(len(names), 'registered bookie')} holds an entry of ledger "
            f"{ledger_id}",
            ledger_id=ledger_id,
        )
    return held


def ensembles(
    ledger_id: int, held: Held, size: int, enough: int, writable: Sequence[str]
) -> tuple[Segment, ...]:
    """Return the ensembles of a ledger whose entries are all on every bookie of an ensemble.

    If a bookie was replaced, another ensemble begins after its last entry. The last entries may be
    on fewer bookies than an ensemble has, because a writer does not wait for all of them.
    Recovery copies these.

    Some bookies may have deleted their copies already. If `enough` bookies have an entry, others of
    the `writable` ones fill the ensemble. `enough` is the ack quorum: then too few bookies lack the
    entry for recovery to conclude that it was never acknowledged.

    Raises:
        JobRefusedError: Fewer than `enough` bookies hold an entry, or there are too few others.
    """
    last = max(ranges[-1][1] for ranges in held.values())
    segments: list[Segment] = []
    first = 0
    while first <= last:
        ends = sorted(
            (end, bookie)
            for bookie, ranges in held.items()
            for start, end in ranges
            if start <= first <= end
        )[-size:]
        if len(ends) < size:
            before = segments[-1].ensemble if segments else ()
            have = {bookie for _, bookie in ends}
            later = {bookie for bookie, ranges in held.items() if ranges[-1][1] >= first}
            if have and have == later and have <= set(before):
                break
            spare = [bookie for bookie in writable if bookie not in have][: size - len(ends)]
            if len(ends) >= enough and len(ends) + len(spare) == size:
                segments.append(Segment(first, (*(bookie for _, bookie in ends), *spare)))
                first = ends[0][0] + 1
                continue
            raise JobRefusedError(
                f"the metadata of ledger {ledger_id} was not made again: entry {first} is on "
                f"{counted(len(ends), 'registered bookie')}, and {enough} are needed",
                remedy="Bring the other bookies back with their directories, keep garbage "
                "collection off, and repeat the command",
            )
        segments.append(Segment(first, tuple(bookie for _, bookie in ends)))
        first = ends[0][0] + 1
    return tuple(segments)
