"""The owners of many ledgers, for lists of ledgers.

The records of all owners are read once. Then the owner of each ledger in a list is known without
another request, given the metadata that the list reads anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.streams.ownership.named_ledgers import NamedLedger, Owner, OwnerRecord, UnreadableRecord
from quire.streams.ownership.owners import OwnerClaim, owner_hint

INDEXED_MAX = 500_000
"""The largest number of ledgers whose owners are held in memory, each with about 100 bytes."""
SKEW_MS = 60_000
"""Milliseconds by which the clocks of two machines may differ. A ledger that was created for an
owner and may be younger than the index is not expected in it."""
NOT_READ = "its record was not read yet"
NOBODY = Owner("unknown", "")
"""The owner that the JSON of a claim has if the owner is not known."""


class OwnerIndex:
    """The owners of ledgers, according to the records of owners that were read so far.

    Pass every record to `add`, and set `whole` at the end.
    """

    def __init__(self, began_ms: int) -> None:
        """Create an empty index. `began_ms` is the Unix time when the reading of records began."""
        self._began_ms = began_ms
        self._owners: dict[int, Owner | tuple[Owner, ...]] = {}
        self._doubts: list[OwnerClaim] = []
        self._full = False
        self.whole = False
        """Whether the records of all owners were passed to `add`."""

    def __len__(self) -> int:
        """Return the number of ledgers with a known owner."""
        return len(self._owners)

    def add(self, record: OwnerRecord) -> None:
        """Add the ledgers that one owner names.

        A record that cannot be read could name any ledger. It becomes a doubt about the ledgers
        without a known owner.
        """
        if isinstance(record, UnreadableRecord):
            if not self._doubts:
                doubt = f"a record cannot be read: {record.owner} ({record.why})"
                self._doubts.append(OwnerClaim(None, doubt=doubt))
            return
        for one in record:
            self._add(one)

    def _add(self, one: NamedLedger) -> None:
        known = self._owners.get(one.ledger_id)
        if known is None:
            if len(self._owners) >= INDEXED_MAX:
                self._full = True
                return
            self._owners[one.ledger_id] = one.owner
        elif isinstance(known, tuple):
            if one.owner not in known:
                self._owners[one.ledger_id] = (*known, one.owner)
        elif one.owner != known:
            self._owners[one.ledger_id] = (known, one.owner)

    def of(self, ledger_id: int, metadata: LedgerMetadata) -> list[OwnerClaim] | None:
        """Return the owners of a ledger, as `owners.find_claims` does.

        The result is None if the owners are not known yet. The list is empty if the ledger
        certainly has no owner. A claim with a doubt stands for a possible owner. Nothing is read.
        """
        hint = owner_hint(metadata)
        if hint.claims:
            return list(hint.claims)
        owners = self._owners.get(ledger_id)
        if owners is not None:
            found = owners if isinstance(owners, tuple) else (owners,)
            return [OwnerClaim(one) for one in found]
        unread = not self.whole or self._full
        if hint.owner is None:
            return None if unread or metadata.ctime_ms >= self._began_ms else list(self._doubts)
        if unread or metadata.ctime_ms >= self._began_ms - SKEW_MS:
            return [OwnerClaim(hint.owner, doubt=NOT_READ)]
        doubt = "the ledger is open and was created for it, so it may be in use"
        return [] if hint.closed else [OwnerClaim(hint.owner, doubt=doubt)]


def owners_as_json(claims: Sequence[OwnerClaim] | None) -> list[dict[str, Any]] | None:
    """Return the claims on a ledger as commands and the HTTP API print them.

    None means that the owners are not known yet.
    """
    if claims is None:
        return None
    return [{**asdict(one.owner or NOBODY), "part": one.part, "doubt": one.doubt} for one in claims]


def owners_in_words(owners: Sequence[dict[str, Any]] | None) -> str:
    """Return owners, in the form of `owners_as_json`, as one text for a table, or "" for none."""
    if owners is None:
        return "unknown"
    found = []
    for one in owners:
        owner = Owner(one["kind"], one["name"], one["place"])
        name = str(owner) if owner != NOBODY else "an unknown owner"
        found.append(f"perhaps {name}" if one["doubt"] else name)
    return " and ".join(found)
