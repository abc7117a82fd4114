"""Removal of the cookie of a bookie whose ledgers were copied to other bookies.

A job may take hours. If an operator creates a bookie with the same id meanwhile, its cookie must
not be removed. A version alone does not show that, because it begins again with each cookie, and
the bytes of a cookie only name paths. Therefore the ids of the bookie's directories are compared as
well.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire._runtime.units import host_port
from quire.errors import (
    JobError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    VersionConflictError,
)
from quire.metadata.bookies.collection import check_not_back
from quire.metadata.bookies.directories import forget_bookie, read_directories
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.naming import check_all_listed


@dataclass(frozen=True, slots=True)
class BookieIdentity:
    """The cookie and the directories of a bookie, by which a later bookie with its id differs."""

    cookie: Versioned[bytes] | None
    """The bookie's cookie, or None if it has none."""
    directories: frozenset[str] = frozenset()
    """The ids of the bookie's directories. The set is empty if they are not known."""
    starts: frozenset[tuple[str, int]] = frozenset()
    """The id of each directory that has a mark, and the number of times that it was started."""

    def is_of(self, now: BookieIdentity) -> bool:
        """Return whether `now`, which was read later, belongs to the same bookie.

        The bookie is the same if the cookie is, and if at least one directory was kept. If the
        directories are not known, the cookie decides.
        """
        if self.cookie != now.cookie:
            return False
        known = self.directories and now.directories
        return not known or not self.directories.isdisjoint(now.directories)

    def started_by(self, now: BookieIdentity) -> bool:
        """Return whether the bookie was started before `now`, which was read later.

        Ledgers that were created then may name it, also if it has stopped again. The result is
        False if the starts are not known, as for a bookie of Apache.
        """
        before = dict(self.starts)
        return any(count > before.get(one, 0) for one, count in now.starts)


async def identity_of(store: MetadataStore, bookie: str) -> BookieIdentity:
    """Return the identity of a bookie. Raises MetadataError if the store does not answer."""
    try:
        cookie = await store.read_cookie(bookie)
    except NoSuchKeyError:
        cookie = None
    try:
        found = await read_directories(store, bookie)
    except MetadataUnavailableError:
        raise
    except MetadataError:
        found = None  # a record that cannot be read must not prevent the removal
    if found is None:
        return BookieIdentity(cookie)
    return BookieIdentity(
        cookie,
        frozenset(found.value.ids.values()),
        frozenset((one, mark.incarnation) for one, mark in found.value.marks.items()),
    )


async def remove_cookie(
    store: MetadataStore, bookie: str, before: BookieIdentity, *, stopped: bool = False
) -> bool:
    """Remove the cookie of the bookie that had the identity `before`.

    With `stopped`, the bookie must not have been started since.

    Returns:
        Whether a cookie was removed. It is False if there is none.

    Raises:
        JobError: The bookie was created again, its cookie was changed, or it was started although
            it had to be stopped. The cookie was kept.
        MetadataError: The store failed.
    """
    now = await identity_of(store, bookie)
    if now.cookie is None:
        return False
    if stopped and before.started_by(now):
        raise JobError(
            f"the cookie of bookie {bookie} was kept, because the bookie was started meanwhile, "
            "and ledgers that were created then may name it",
            remedy="Run the command again, which searches the ledgers once more",
        )
    try:
        if before.is_of(now):
            await store.delete_cookie(bookie, now.cookie.version)
            return True
    except VersionConflictError as error:
        if not error.outcome_known:
            raise
    raise JobError(
        f"the cookie of bookie {bookie} was kept, because another process changed it or created "
        "the bookie again during the job",
        remedy="Find out who created the bookie again, and run the command again",
    )


async def remove_lost_bookie(store: MetadataStore, bookie: str, before: BookieIdentity) -> bool:
    """Remove the cookie of a lost bookie that no ledger names, and the record of its directories.

    Except for `stopped`, the arguments, the result and the errors are those of `remove_cookie`.
    JobError is also raised if the bookie is running or was started since, because ledgers that were
    created meanwhile may name it. MetadataError is also raised if the store went back to an older
    state, or may have ledgers that it does not list, because these may name the bookie as well.
    """
    await check_not_back(store)
    await check_all_listed(store)
    address = (await store.bookies()).find(bookie)
    if address is not None:
        raise JobError(
            f"the cookie of bookie {bookie} was kept, because the bookie was started during the "
            f"job, at {host_port(address.host, address.port)}",
            remedy="To take it away, use `quire bookie decommission`",
        )
    removed = await remove_cookie(store, bookie, before, stopped=True)
    if removed or before.is_of(await identity_of(store, bookie)):
        await forget_bookie(store, bookie, before.directories)
    return removed
