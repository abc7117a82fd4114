"""The cluster's records about garbage collection: an off switch, and a mark of each bookie.

Both are nodes below the under-replication tree, where Apache's programs do not read them.

| node                                 | content                                                   |
|--------------------------------------|-----------------------------------------------------------|
| `quire-collection`                   | exists: collection is off for the whole cluster           |
| `quire-collection-marks/BOOKIE`      | a number that this bookie raises, and a token of its own  |

A mark proves that the store did not go back. The bookie raises its mark in the store, and then
remembers the new mark in its directories. A store that was restored from an older backup has an
older mark than the bookie remembers, or another token, or none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from quire.codec.metadata.stored_json import stored_json
from quire.errors import (
    CollectionOffError,
    KeyExistsError,
    LaterMetadataError,
    MetadataError,
    MetadataWentBackError,
    NoSuchKeyError,
    VersionConflictError,
)
from quire.metadata.bookies.nodes import (
    delete_node,
    node_path,
    read_node,
    refuse_later,
    write_node,
)
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.uri import replication_root

SWITCH_NODE = "quire-collection"
MARKS_NODE = "quire-collection-marks"
ATTEMPTS_MAX = 10
"""The number of attempts to change a mark that others change at the same time."""


@dataclass(frozen=True, slots=True)
class CollectionMark:
    """One write of a bookie's mark, which is a point in the history of the store."""

    count: int
    """The number of this write. It rises by one with each write."""
    token: str
    """A random name of this write: two histories can reach the same count, but not the same
    token."""

    def as_json(self) -> dict[str, Any]:
        return {"count": self.count, "token": self.token}


_NO_MARK = CollectionMark(0, "")
"""A mark that is less than any mark that a bookie has raised."""


@dataclass(frozen=True, slots=True)
class CollectionRefusal:
    """The state of a bookie that found the store older than its mark: it collects no garbage."""

    remembered: CollectionMark
    """The mark that the bookie remembers and the store does not have."""
    since_ms: int
    """When the bookie first refused, in milliseconds since 1970, or 0 if it is not known."""
    accepted: bool = False
    """Whether an operator has examined the store and lets the bookie continue with it."""
    unreadable: str = ""
    """The reason why the mark in the store could not be read, or '' if it was read. If there is a
    reason, it is not known whether the store went back to an older state."""


_WHAT = "the mark of a bookie"
_REFUSED_NAMES = ("count", "token", "since_ms", "accepted", "unreadable")


@dataclass(frozen=True, slots=True)
class BookieMark:
    """The value of a bookie's mark node."""

    mark: CollectionMark
    refusal: CollectionRefusal | None = None

    def encode(self) -> bytes:
        value: dict[str, Any] = self.mark.as_json()
        if self.refusal is not None:
            value["refused"] = {
                **self.refusal.remembered.as_json(),
                "since_ms": self.refusal.since_ms,
                "accepted": self.refusal.accepted,
                "unreadable": self.refusal.unreadable,
            }
        return json.dumps(value).encode()

    @classmethod
    def decode(cls, data: bytes) -> BookieMark:
        """Decode the value of a mark node.

        Raises:
            LaterMetadataError: A later version of Quire wrote the value.
            ValueError: The value is not a mark.
        """
        value = stored_json(data)
        refuse_later(_WHAT, value, ("count", "token", "refused"))
        try:
            mark = CollectionMark(int(value["count"]), str(value["token"]))
            refused = value.get("refused")
            if refused is None:
                return cls(mark)
            refuse_later(_WHAT, refused, _REFUSED_NAMES)
            remembered = CollectionMark(int(refused["count"]), str(refused["token"]))
            since_ms, accepted = int(refused["since_ms"]), bool(refused["accepted"])
            unreadable = str(refused.get("unreadable", ""))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"it is not the mark of a bookie ({error!r})") from None
        return cls(mark, CollectionRefusal(remembered, since_ms, accepted, unreadable))

    @classmethod
    def decode_any(cls, data: bytes) -> BookieMark:
        """Decode the value of a mark node like `decode`, but return a refusal for a damaged value.

        A value that cannot be decoded does not prove that the store is current. The refusal
        therefore keeps the bookie from collecting garbage until an operator accepts the store.

        Raises:
            LaterMetadataError: A later version of Quire wrote the value. It is no refusal, because
                accepting a refusal replaces the value, and the later version can still decode it.
        """
        try:
            return cls.decode(data)
        except ValueError as error:
            return cls(_NO_MARK, CollectionRefusal(_NO_MARK, 0, unreadable=str(error)))

    def holds(self, remembered: CollectionMark | None) -> bool:
        """Return whether this mark proves that the store did not go back to before `remembered`.

        If the bookie remembers no mark (None), any mark will do.
        """
        if remembered is None or self.mark.count > remembered.count:
            return True
        return self.mark == remembered


@dataclass(frozen=True, slots=True)
class Switch:
    """The off switch: while it exists, no bookie of the cluster collects garbage."""

    since_ms: int = 0
    by: str = ""
    """The host and process of the command that set it."""
    why: str = ""

    def encode(self) -> bytes:
        return json.dumps({"since_ms": self.since_ms, "by": self.by, "why": self.why}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Switch:
        """Decode the value of the switch's node.

        A value that cannot be decoded gives an empty `Switch`, because the node switches collection
        off whatever it contains.
        """
        try:
            value = stored_json(data)
            return cls(int(value["since_ms"]), str(value["by"]), str(value["why"]))
        except (ValueError, KeyError, TypeError):
            return cls()

    def sentence(self) -> str:
        """Return the clause for messages that says who switched garbage collection off, and why."""
        by = f" by {self.by}" if self.by else ""
        why = f" ({self.why})" if self.why else ""
        return f"garbage collection is switched off for the whole cluster{by}{why}"


# -- the switch -------------------------------------------------------------------------------


def _switch_path(store: MetadataStore) -> str:
    return f"{replication_root(store.uri)}/{SWITCH_NODE}"


async def read_switch(store: MetadataStore) -> Switch | None:
    """Return the off switch, or None if garbage collection is not switched off.

    Raises:
        MetadataError: The store does not answer.
    """
    found = await read_node(store, _switch_path(store), Switch.decode)
    return None if found is None else found.value


async def switch_off(store: MetadataStore, switch: Switch) -> bool:
    """Switch garbage collection off for the cluster. Return False if it was off already.

    The switch is durable on return. A bookie that has already listed the ledgers for a garbage
    collection reads the switch once more before it drops anything. Raises MetadataError if the
    store fails.
    """
    try:
        await write_node(store, _switch_path(store), switch.encode(), None)
    except KeyExistsError:
        return False
    return True


async def switch_on(store: MetadataStore) -> bool:
    """Let bookies collect garbage again. Return False if collection was not switched off.

    The change is durable on return. Raises MetadataError if the store fails.
    """
    if await read_switch(store) is None:
        return False
    await delete_node(store, _switch_path(store))
    return True


# -- the marks --------------------------------------------------------------------------------


def mark_path(uri: str, bookie_id: str) -> str:
    """Return the path of the bookie's mark node."""
    return node_path(uri, MARKS_NODE, bookie_id)


async def read_mark(store: MetadataStore, bookie_id: str) -> Versioned[BookieMark] | None:
    """Return the bookie's mark, or None if it has none. A mark that cannot be decoded is a refusal.

    Raises:
        LaterMetadataError: A later version of Quire wrote the mark.
        MetadataError: The store does not answer.
    """
    return await read_node(store, mark_path(store.uri, bookie_id), BookieMark.decode_any)


async def write_mark(
    store: MetadataStore, bookie_id: str, made: BookieMark, version: int | None
) -> None:
    """Write `made` as the mark of the bookie.

    With None as `version`, the mark is created. Otherwise it replaces the mark that has this
    version.

    Raises:
        KeyExistsError: The version is None, and the bookie has a mark.
        VersionConflictError: The mark's version is not `version`.
        NoSuchKeyError: There is no mark to replace.
        MetadataError: The store fails.
    """
    await write_node(store, mark_path(store.uri, bookie_id), made.encode(), version)


async def refusals(
    store: MetadataStore, later: dict[str, str] | None = None
) -> dict[str, CollectionRefusal]:
    """Return the refusals that no operator has accepted yet, by bookie id.

    A mark that cannot be decoded counts as a refusal.

    Args:
        store: The metadata store.
        later: Receives the reason for each bookie whose mark a later version of Quire wrote. It is
            not known whether such a bookie refuses. With None, one such mark is an error.

    Raises:
        LaterMetadataError: A later version wrote a mark, and `later` is None.
        MetadataError: The store does not answer.
    """
    parent = f"{replication_root(store.uri)}/{MARKS_NODE}"
    try:
        names = await store.tree.children(parent)
    except NoSuchKeyError:
        return {}
    found = {}
    for name in names:
        try:
            one = await read_mark(store, name)
        except LaterMetadataError as error:
            if later is None:
                raise
            later[name] = str(error.args[0])
            continue
        if one is not None and one.value.refusal is not None and not one.value.refusal.accepted:
            found[name] = one.value.refusal
    return found


async def accept(
    store: MetadataStore, bookie_id: str, shown: CollectionRefusal | None = None
) -> bool:
    """Let a bookie that refuses to collect garbage continue with this store.

    The permission covers only its present refusal. If the store goes back once more, the bookie
    refuses again.

    Args:
        store: The metadata store.
        bookie_id: The bookie.
        shown: The refusal that an operator has examined, or None to accept any.

    Returns:
        Whether the permission was given now. False means that the bookie has no refusal that waits
        for one.

    Raises:
        VersionConflictError: The bookie has another refusal than `shown`. It was not accepted.
        MetadataError: The store does not answer, or others changed the mark too often.
    """
    for _ in range(ATTEMPTS_MAX):
        found = await read_mark(store, bookie_id)
        if found is None or found.value.refusal is None or found.value.refusal.accepted:
            return False
        if shown is not None and found.value.refusal != shown:
            raise VersionConflictError(
                f"nothing was accepted: bookie {bookie_id} now has a newer reason to refuse to "
                "collect garbage than the one that was shown",
                remedy="Look at `quire cluster gc status`, and find out whether the metadata store "
                "went back once more, before you accept the newer reason",
            )
        accepted = replace(found.value, refusal=replace(found.value.refusal, accepted=True))
        try:
            await write_mark(store, bookie_id, accepted, found.version)
        except (VersionConflictError, NoSuchKeyError):
            continue
        return True
    raise MetadataError(
        f"bookie {bookie_id} was not allowed to collect garbage again: others changed its mark "
        f"in the metadata store {ATTEMPTS_MAX} times in a row. Nothing was changed",
        remedy="Try again",
    )


async def check_not_back(store: MetadataStore) -> None:
    """Raise an error if the store may have gone back to an older state.

    Call this before you delete data, such as a ledger, because nothing in the store names it.

    Raises:
        MetadataWentBackError: A bookie has proof that the store went back, or its mark cannot be
            read.
        LaterMetadataError: A later version of Quire wrote a mark.
        MetadataError: The store does not answer.
    """
    waiting = await refusals(store)
    back = sorted(name for name, one in waiting.items() if not one.unreadable)
    if back:
        raise MetadataWentBackError(
            f"the metadata store at {store.uri} went back to an older state, as noticed by "
            f"bookies {', '.join(back)}. It may lack ledgers whose data is still needed, so "
            "nothing was deleted"
        )
    if waiting:
        told = "; ".join(f"{name}: {one.unreadable}" for name, one in sorted(waiting.items()))
        raise MetadataWentBackError(
            f"it is not known whether the metadata store at {store.uri} went back to an older "
            f"state, because marks of bookies in it cannot be read ({told}). Nothing was deleted",
            remedy="Look at `quire cluster gc status`. If the store was not restored from a "
            "backup, run `quire cluster gc accept` to let these bookies continue",
        )


async def check_collectable(store: MetadataStore) -> None:
    """Raise an error if nothing may be deleted on the evidence of this store.

    Use this for deletions that an operator requests.

    Raises:
        CollectionOffError: Garbage collection is switched off.
        MetadataWentBackError: The store went back, or may have gone back.
        LaterMetadataError: A later version of Quire wrote the mark of a bookie.
        MetadataError: The store does not answer.
    """
    switch = await read_switch(store)
    if switch is not None:
        raise CollectionOffError(f"{switch.sentence()}. Nothing was deleted")
    await check_not_back(store)


async def may_collect(store: MetadataStore) -> bool:
    """Return whether `check_collectable` passes.

    Use this for deletions at the end of other work, such as a job. If the result is False, skip
    the deletions: a later run finds what they would have deleted.

    Raises:
        LaterMetadataError: A later version of Quire wrote the mark of a bookie.
        MetadataError: The store does not answer.
    """
    try:
        await check_collectable(store)
    except (CollectionOffError, MetadataWentBackError):
        return False
    return True
