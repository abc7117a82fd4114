"""The check that every promise in the journals is kept when the faults have ended."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import quire
from quire.errors import NoSuchLedgerError, QuireError
from quire.streams import EARLIEST
from tests.support.replication import audited
from tests.support.torture.clients import NAMESPACE
from tests.support.torture.journal import Promises, check_ledger, check_stream

CONFIG = quire.ClientConfig(add_timeout_s=10.0, read_timeout_s=30.0, bookies_wait_s=60.0)
QUIET_LIMIT_S = 300.0
"""Seconds within which all bookies must serve, and every entry must be on its whole write quorum.
"""
POLL_S = 2.0


@dataclass
class Verdict:
    wrong: list[str] = field(default_factory=list)
    ledgers: int = 0
    entries: int = 0
    records: int = 0
    quiet_s: float = 0.0
    """Seconds after the end of the faults until every entry was on its whole write quorum."""


async def judge(uri: str, bookies: int, promises: Promises) -> Verdict:
    """Read everything in the cluster, and compare it with what was promised."""
    verdict = Verdict(list(promises.wrong))
    begin_s = time.monotonic()
    deadline_s = begin_s + QUIET_LIMIT_S
    async with quire.connect(uri, config=CONFIG) as client:
        while await _registered(client) < bookies and time.monotonic() < deadline_s:
            await asyncio.sleep(POLL_S)
        for ledger_id, promise in sorted(promises.live().items()):
            for attempts_left in reversed(range(3)):
                try:
                    async with client.open_ledger(ledger_id, recover=True) as reader:
                        end = reader.last_add_confirmed
                        payloads = [entry.payload async for entry in reader.read()]
                except NoSuchLedgerError:
                    verdict.wrong.append(f"ledger {ledger_id} is gone, but nobody deleted it")
                except QuireError as error:
                    if attempts_left:
                        await asyncio.sleep(POLL_S)
                        continue
                    verdict.wrong.append(f"ledger {ledger_id} cannot be read: {error!r}")
                else:
                    verdict.ledgers += 1
                    verdict.entries += end + 1
                    verdict.wrong += check_ledger(ledger_id, promise, end, payloads)
                break
        await _streams(client, promises, verdict)
        missing = await _missing(client)
        while missing and time.monotonic() < deadline_s:
            await asyncio.sleep(POLL_S)
            missing = await _missing(client)
        verdict.quiet_s = time.monotonic() - begin_s
        verdict.wrong += missing
    return verdict


async def _registered(client: quire.Client) -> int:
    """Return the number of bookies that serve, including those that are read-only.

    A bookie that has repaired a loss stays read-only for some minutes.
    """
    bookies = await client.bookies()
    return len(bookies.writable) + len(bookies.readonly)


async def _streams(client: quire.Client, promises: Promises, verdict: Verdict) -> None:
    async with client.namespace(NAMESPACE) as streams:
        for stream in await streams.streams():
            # A takeover recovers the segment that the last writer left.
            writer = await streams.open_writer(stream)
            await writer.close()
            reader = streams.open_reader(stream, start=EARLIEST, on_gap="skip")
            try:
                payloads = [record.payload async for record in reader]
            except QuireError as error:
                verdict.wrong.append(f"stream {stream} cannot be read: {error!r}")
                continue
            verdict.records += len(payloads)
            verdict.wrong += check_stream(stream, promises.producers(stream), payloads)


async def _missing(client: quire.Client) -> list[str]:
    """Return a text for each finding of an audit of all ledgers, such as a missing replica."""
    ids = [
        number async for ledgers in client.metadata.list_ledgers() for number in ledgers.ledger_ids
    ]
    return [f"not on its whole write quorum: {found}" for found in await audited(client, ids)]
