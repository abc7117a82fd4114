"""The search for the owner of a ledger, before a user deletes the ledger by its id.

The custom metadata of a ledger says what it was created for, so reading one record is enough for
most ledgers. Some ledgers have no such metadata: those of Java's streams, and those that a user
published as a dataset. For these, the records of all datasets and streams are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from quire._runtime.tasks import each
from quire._runtime.units import verb
from quire.client import Client
from quire.client.datasets.unpublished import OWNER_KEY as DATASET_KEY
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import LedgerOwnedError, NoSuchLedgerError, QuireError, UnreadableMetadataError
from quire.metadata.ledgers.deletions import deletion_of
from quire.streams.objects.format import BUCKET_KEY, NAME_KEY
from quire.streams.ownership.named_ledgers import (
    Owner,
    OwnerRecord,
    UnreadableRecord,
    dataset_record,
    object_owner,
    object_record,
    records,
    stream_owner,
    stream_record,
)
from quire.streams.ownership.orphans import STREAM_KEY
from quire.streams.write.segments import APPLICATION

APPLICATION_KEY = "application"
PULSAR_KEYS = {
    "pulsar/managed-ledger": "managed ledger",
    "pulsar/cursor": "cursor",
    "pulsar/compactedTopic": "compacted topic",
    "pulsar/schemaId": "schema",
    "pulsar/delayedIndexBucketId": "delayed index bucket",
}
"""The keys in custom metadata by which Pulsar's ledgers are known, and what the value of each
names.
"""
MISSED_LIMIT_S = 5.0
"""Seconds to search for the owners of a ledger that does not exist."""
DOUBTS_MAX = 5
"""The largest number of unreadable records that one error names."""


@dataclass(frozen=True, slots=True)
class OwnerClaim:
    """A reason not to delete a ledger: an owner that names the ledger, or that perhaps does."""

    owner: Owner | None
    """The owner, or None if it is not known whether there is one."""
    part: str = ""
    """A text for messages that says which part of the owner is in the ledger, or "".

    An example is "entries 0 to 99".
    """
    doubt: str = ""
    """The reason why the ledger perhaps does not belong to the owner, or "" if it certainly does.
    """

    def __str__(self) -> str:
        if self.doubt:
            return f"perhaps {self.name}: {self.doubt}"
        return f"{self.name} ({self.part})" if self.part else self.name

    @property
    def name(self) -> str:
        """The owner in words, for messages."""
        return "an unknown owner" if self.owner is None else str(self.owner)

    @property
    def verdict(self) -> str:
        """The words that follow the ledger in a message, such as "belongs to stream orders"."""
        return f"may belong to {self.name}: {self.doubt}" if self.doubt else f"belongs to {self}"


async def refuse_owned(
    client: Client,
    ledger_ids: Sequence[int],
    *,
    limit_s: float | None = None,
    looked_at: Callable[[int], None] = lambda count: None,
) -> None:
    """Raise LedgerOwnedError if one of the ledgers has an owner, or may have one.

    The owner of a ledger is the stream, object or dataset that names the ledger, or the application
    that the metadata of the ledger names. Nothing is changed. Cancelling this call is safe.

    Args:
        client: The client of the cluster.
        ledger_ids: The ids of the ledgers.
        limit_s: Seconds to search the records of all streams and datasets for ledgers whose own
            metadata does not settle the question. What is unknown afterwards counts as an owner.
            The default is no limit.
        looked_at: Called with the number of records that were read since its last call.

    Raises:
        LedgerOwnedError: At least one ledger has an owner, or may have one.
        MetadataUnavailableError: The metadata store does not answer.
    """
    claims = await find_claims(client, ledger_ids, limit_s=limit_s, looked_at=looked_at)
    owned = {ledger_id: found for ledger_id, found in claims.items() if found}
    if owned:
        raise _owned(owned)


async def find_claims(
    client: Client,
    ledger_ids: Sequence[int],
    *,
    scan: bool = True,
    limit_s: float | None = None,
    looked_at: Callable[[int], None] = lambda count: None,
) -> dict[int, list[OwnerClaim]]:
    """Return the owners of each ledger, with an empty list for ledgers that nothing names.

    A closed ledger that its owner no longer names is an orphan and has no owner. If such a ledger
    is open, a writer may still use it, so it gets a claim with a doubt.

    Args:
        client: The client of the cluster.
        ledger_ids: The ledgers.
        scan: Whether to search the records of all datasets and streams for ledgers whose metadata
            names no owner, or whose owner does not name them. With False, such ledgers get an empty
            list, which does not prove that they have no owner.
        limit_s: Seconds for that search. What is unknown afterwards becomes a claim with a doubt.
        looked_at: Called with the number of records that were read since the last call.

    Raises:
        MetadataUnavailableError: The metadata store does not answer. Nothing was changed.
    """
    # The server may lag behind a process that has just given one of them to an owner.
    await client.metadata.tree.sync()
    hints = dict(zip(ledger_ids, await each(ledger_ids, lambda one: _hint(client, one))))
    made_for = list({hint.made_for: None for hint in hints.values() if hint.made_for is not None})
    answers = dict(zip(made_for, await each(made_for, lambda one: _record(client, one))))
    claims = {
        ledger_id: _by_its_metadata(ledger_id, hint, answers) for ledger_id, hint in hints.items()
    }
    rest = {one for one, hint in hints.items() if hint.exists and not claims[one]}
    if rest and scan:
        found, doubts = await _by_all_records(client, rest, limit_s, looked_at)
        for ledger_id in rest:
            claims[ledger_id] = found.get(ledger_id) or doubts
    return claims


async def missed(client: Client, error: NoSuchLedgerError, ledger_id: int) -> NoSuchLedgerError:
    """Return an error that also says who needs a ledger that does not exist, and who deleted it.

    The search reads records for at most `MISSED_LIMIT_S` seconds, and the error says if that was
    not enough. Returns `error` itself if nothing names the ledger. Raises MetadataUnavailableError.
    """
    limit_s = MISSED_LIMIT_S
    found, doubts = await _by_all_records(
        client, {ledger_id}, limit_s, lambda _: None, objects=True
    )
    owners = [str(claim) for claim in found.get(ledger_id, ())]
    deletion = await deletion_of(client.metadata, ledger_id)
    if not owners and not doubts and deletion is None:
        return error
    told = [f"ledger {ledger_id} does not exist"]
    remedy = (
        "Check the id. If an owner names the ledger, its readers cannot read what the ledger held"
    )
    if owners:
        told[0] += f", and {' and '.join(owners)} {verb('name', len(owners))} it"
        remedy = "Readers of its owner cannot read what the ledger held, unless it is restored"
    for claim in doubts:
        owner = claim.name if claim.owner else "another owner" if owners else "an owner"
        told.append(f"It is unknown whether {owner} names it: {claim.doubt}")
    if deletion is not None:
        told.append(str(deletion))
    return NoSuchLedgerError(". ".join(told), remedy=remedy)


# -- by the ledger's own metadata -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnerHint:
    """The owner of a ledger according to the ledger's own metadata."""

    exists: bool = True
    claims: tuple[OwnerClaim, ...] = ()
    """The claims that the ledger's own metadata proves, without the record of an owner."""
    made_for: tuple[str, str, str] | None = None
    """The kind of the owner, its name (for a stream its path), and its bucket (for an object), or
    None.
    """
    closed: bool = False

    @property
    def owner(self) -> Owner | None:
        """The owner that the ledger was made for, or None if the metadata does not name it.

        The last part of a stream's path counts as its name, because its namespace is not known.
        """
        if self.made_for is None:
            return None
        kind, name, bucket = self.made_for
        if kind == "object":
            return object_owner(bucket, name)
        place, _, last = name.rpartition("/")
        return Owner(kind, last, place or "/") if kind == "stream" else Owner(kind, name)


async def _hint(client: Client, ledger_id: int) -> OwnerHint:
    try:
        return owner_hint(await client.ledger_metadata(ledger_id))
    except NoSuchLedgerError:
        return OwnerHint(exists=False)
    except UnreadableMetadataError as error:
        return OwnerHint(claims=(OwnerClaim(None, doubt=str(error)),))


def owner_hint(metadata: LedgerMetadata) -> OwnerHint:
    """Return what the metadata of a ledger says about its owner. No other metadata is read."""
    application = _text(metadata, APPLICATION_KEY)
    if application and application.encode() != APPLICATION["application"]:
        return OwnerHint(claims=(_foreign(metadata, application),))
    if name := _text(metadata, NAME_KEY):
        made_for = ("object", name, _text(metadata, BUCKET_KEY))
    elif name := _text(metadata, DATASET_KEY):
        made_for = ("dataset", name, "")
    elif application and (path := _text(metadata, STREAM_KEY)).startswith("/"):
        made_for = ("stream", path, "")
    else:
        return OwnerHint()
    return OwnerHint(made_for=made_for, closed=metadata.closed)


async def _record(client: Client, made_for: tuple[str, str, str]) -> tuple[Owner, OwnerRecord]:
    """Return the owner that `made_for` identifies, and the ledgers that its record names."""
    kind, name, bucket = made_for
    if kind == "object":
        return object_owner(bucket, name), await object_record(client, bucket, name)
    if kind == "dataset":
        return Owner("dataset", name), await dataset_record(client, name)
    record = await stream_record(client, name)
    if isinstance(record, UnreadableRecord):
        return record.owner, record
    return await stream_owner(client.metadata.tree, name), record


def _by_its_metadata(
    ledger_id: int,
    hint: OwnerHint,
    answers: Mapping[tuple[str, str, str], tuple[Owner, OwnerRecord]],
) -> list[OwnerClaim]:
    """Return the claims of the owner that the ledger's own metadata names.

    The list is empty if that owner does not name the ledger and the ledger is closed.
    """
    if hint.made_for is None:
        return list(hint.claims)
    owner, record = answers[hint.made_for]
    claims = _claims(record, ledger_id)
    if not claims and not hint.closed:
        doubt = "the ledger is open and was created for it, so it may be in use"
        return [OwnerClaim(owner, doubt=doubt)]
    return claims


def _foreign(metadata: LedgerMetadata, application: str) -> OwnerClaim:
    for key, kind in PULSAR_KEYS.items():
        if name := _text(metadata, key):
            part = (
                "" if key == "pulsar/managed-ledger" else _text(metadata, "pulsar/managed-ledger")
            )
            return OwnerClaim(
                Owner(f"Pulsar's {kind}" if application == "pulsar" else kind, name),
                f"of managed ledger {part}" if part else "",
            )
    return OwnerClaim(Owner("application", application), _text(metadata, "component"))


def _claims(record: OwnerRecord, ledger_id: int) -> list[OwnerClaim]:
    if isinstance(record, UnreadableRecord):
        return [OwnerClaim(record.owner, doubt=f"its record cannot be read: {record.why}")]
    return [OwnerClaim(one.owner, one.part) for one in record if one.ledger_id == ledger_id]


def _text(metadata: LedgerMetadata, key: str) -> str:
    return metadata.custom.get(key, b"").decode(errors="replace")


# -- by the records of all owners -------------------------------------------------------------


async def _by_all_records(
    client: Client,
    ledger_ids: set[int],
    limit_s: float | None,
    looked_at: Callable[[int], None],
    *,
    objects: bool = False,
) -> tuple[Mapping[int, list[OwnerClaim]], list[OwnerClaim]]:
    """Return the certain claims of each ledger, and the doubts that apply to all of the ledgers.

    The records of all datasets and streams are read, and with `objects` those of objects as well.
    What was not read after `limit_s` seconds becomes a doubt.
    """
    found: dict[int, list[OwnerClaim]] = {}
    doubts: list[OwnerClaim] = []
    try:
        # The metadata of an object's ledger names the object, so a ledger that exists needs no
        # search.
        async with (
            asyncio.timeout(limit_s),
            aclosing(records(client, objects=objects)) as all_records,
        ):
            async for record in all_records:
                looked_at(1)
                if isinstance(record, UnreadableRecord):
                    if len(doubts) < DOUBTS_MAX:
                        doubts += _claims(record, -1)
                    continue
                for one in record:
                    if one.ledger_id in ledger_ids:
                        found.setdefault(one.ledger_id, []).append(OwnerClaim(one.owner, one.part))
    except QuireError:
        raise
    except TimeoutError:
        doubt = f"not all streams and datasets could be checked within {limit_s:g} s"
        doubts.append(OwnerClaim(None, doubt=doubt))
    return found, doubts


def _owned(claims: Mapping[int, Sequence[OwnerClaim]]) -> LedgerOwnedError:
    owners = {ledger_id: [str(claim) for claim in found] for ledger_id, found in claims.items()}
    told = "; ".join(
        f"ledger {ledger_id} {', and it '.join(claim.verdict for claim in found)}"
        for ledger_id, found in claims.items()
    )
    return LedgerOwnedError(f"{told}. Nothing was deleted", owners=owners)
