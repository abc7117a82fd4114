"""The ledgers that a command is about to destroy, and the streams and objects that need them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from quire._runtime.units import are, counted, some_of, them, verb
from quire.errors import MetadataError
from quire.metadata.ledgers.unreadable import Unread

if TYPE_CHECKING:
    from quire.metadata.interface import MetadataStore

LOOK_LIMIT_S = 20.0
"""Seconds to look for ledgers and their owners. After that, the numbers are lower bounds."""


async def destroyed(store: MetadataStore, bookie_id: str | None = None) -> str:
    """Return a sentence about the ledgers of a cluster, or those with a replica on `bookie_id`.

    It names the streams, objects, datasets and state machines that need them, as far as they are
    found within `LOOK_LIMIT_S`. If the metadata cannot be read, the sentence says so. Cancel-safe.
    Nothing is changed.
    """
    look = _Look(store, bookie_id)
    whole = True
    try:
        async with asyncio.timeout(LOOK_LIMIT_S):
            await look.run()
    except TimeoutError:
        whole = False
    except MetadataError as error:
        return f"it is unknown which ledgers are concerned, and what needs them: {error}"
    return look.sentence(whole)


class _Look:
    def __init__(self, store: MetadataStore, bookie_id: str | None) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._ledgers: set[int] | None = None if bookie_id is None else set()
        self._count = 0
        self._needed: set[int] = set()
        self._owners: dict[str, None] = {}
        self._unreadable = 0
        self._unread = Unread()

    async def run(self) -> None:
        from quire.client import Client
        from quire.metadata.ledgers.naming import pages_naming
        from quire.streams.ownership.named_ledgers import UnreadableRecord, records

        if self._ledgers is None or self._bookie_id is None:
            async for span in self._store.list_ledgers():
                self._count += len(span.ledger_ids)
        else:
            pages = pages_naming(self._store, self._bookie_id, lambda count: None, self._unread)
            async for page in pages:
                self._ledgers.update(ledger_id for ledger_id, _ in page)
                self._count = len(self._ledgers)
        # Only its metadata store is used, which the caller closes.
        async with aclosing(records(Client(self._store))) as found:
            async for record in found:
                if isinstance(record, UnreadableRecord):
                    self._unreadable += 1
                    continue
                for one in record:
                    if one.needed and (self._ledgers is None or one.ledger_id in self._ledgers):
                        self._needed.add(one.ledger_id)
                        self._owners[str(one.owner)] = None

    def sentence(self, whole: bool) -> str:
        least = "" if whole else "at least "
        ledgers = f"{least}{counted(self._count, 'ledger')}"
        if self._bookie_id is None:
            text = f"the cluster has {ledgers}"
        else:
            have = verb("have", self._count)
            text = f"{ledgers} {have} a replica on bookie {self._bookie_id}"
        if self._needed:
            number = len(self._needed)
            text += f"; {least}{number:,} of them {are(number)} needed by {some_of(self._owners)}"
        elif whole and self._count:
            text += f"; no stream, object or dataset needs {them(self._count)}"
        if self._unread:
            text += f"; the metadata of {self._unread} cannot be read, so it may have one as well"
        if self._unreadable:
            text += f"; {counted(self._unreadable, 'record')} of owners cannot be read"
        return text
