"""The rest of the under-replication tree: which ledgers are marked, and what auditors and operators
tell each other through it.

Whatever is there may have been written by Java's auditor, workers or shell, and may be read by
them.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

from quire.codec.metadata.underreplication import (
    DELAY,
    DISABLE,
    LAYOUT,
    LAYOUT_VALUE,
    LEDGERS,
    LOCKS,
    check_layout,
    checked_at,
    checked_value,
    delay_of,
    delay_value,
    is_group,
    ledger_of,
    locked_ledger,
)
from quire.errors import (
    KeyExistsError,
    MetadataError,
    NoSuchKeyError,
    NotEmptyError,
    UnreadableMetadataError,
)
from quire.metadata.interface import MetadataStore, Versioned, Watch
from quire.metadata.tree import Create, Delete, Put
from quire.replication.marks.locks import MARK_DEPTH, replication_root

MALFORMED_MAX = 100
"""The number of misplaced nodes that one walk over the marks names."""
CHANGES_MAX = 10
"""Of a node, by others, in a row: behind it who wants to change it is told."""


class ReplicationMarks:
    """Calls raise MetadataError. Reads are cancel-safe; of a change that was cancelled the outcome
    is unknown."""

    def __init__(self, store: MetadataStore) -> None:
        self.root = replication_root(store.uri)
        self._tree = store.tree

    async def prepare(self) -> None:
        """Make what is missing. MetadataError for a tree of a form that we do not know."""
        layout = f"{self.root}/{LAYOUT}"
        await self._tree.make_path(layout, LAYOUT_VALUE)
        value = (await self._tree.read(layout)).value
        try:
            check_layout(value)
        except ValueError as error:
            raise MetadataError(
                f"{layout} is not that of an under-replication tree that Quire knows: {error}",
                remedy="Use the version of BookKeeper that made it",
            ) from None
        await self._tree.make_path(f"{self.root}/{LEDGERS}")
        await self._tree.make_path(f"{self.root}/{LOCKS}")

    # -- marked ledgers -----------------------------------------------------------------------

    async def walk(
        self,
        rng: random.Random | None = None,
        *,
        prune: bool = False,
        malformed: dict[str, str] | None = None,
    ) -> AsyncIterator[int]:
        """Yield the ids of marked ledgers in random order, or ascending without `rng`.

        Only the names below one node of each level are in memory. An id may turn out not to be
        marked, because its mark was removed meanwhile, or only its parents are left. Parents
        without children are left when the removal of a mark was interrupted; `prune` removes them.

        A node whose name cannot lead to a mark is skipped and never removed. `malformed` receives
        its path and the reason, for at most `MALFORMED_MAX` nodes.
        """
        waiting: list[list[str]] = [await self._names((), rng)]
        groups: list[str] = []
        while waiting:
            names = waiting[-1]
            if not names:
                waiting.pop()
                if groups:
                    groups.pop()
                continue
            name = names.pop()
            last = len(groups) == MARK_DEPTH - 1
            ledger_id = ledger_of((*groups, name)) if last else None
            if not is_group(name) or (last and ledger_id is None):
                path = "/".join((self.root, LEDGERS, *groups, name))
                if malformed is not None and len(malformed) < MALFORMED_MAX:
                    malformed[path] = "its name is not one that leads to a mark"
                continue
            if ledger_id is not None:
                yield ledger_id
                continue
            groups.append(name)
            names = await self._names(groups, rng)
            if prune and not names:
                await self._prune(groups)
            waiting.append(names)

    async def _prune(self, groups: list[str]) -> None:
        try:
            await self._tree.commit(Delete("/".join((self.root, LEDGERS, *groups))))
        except (NoSuchKeyError, NotEmptyError):
            pass  # others were here

    async def _names(self, groups: list[str] | tuple[()], rng: random.Random | None) -> list[str]:
        """To be taken from the end."""
        try:
            names = await self._tree.children("/".join((self.root, LEDGERS, *groups)))
        except NoSuchKeyError:
            return []
        if rng is None:
            names.reverse()
        else:
            rng.shuffle(names)
        return names

    async def locked(self) -> set[int]:
        """Ledgers that somebody works on."""
        try:
            names = await self._tree.children(f"{self.root}/{LOCKS}")
        except NoSuchKeyError:
            return set()
        return {found for name in names if (found := locked_ledger(name)) is not None}

    def watch_ledgers(self, changed: Callable[[], None]) -> Watch:
        """Call `changed` when there may be something where there was nothing: not for every mark,
        only for the first ones of a stretch of ids."""
        return self._tree.watch_children(f"{self.root}/{LEDGERS}", lambda names: changed())

    # -- switched off -------------------------------------------------------------------------

    async def enabled(self) -> bool:
        return not await self._tree.exists(f"{self.root}/{DISABLE}")

    async def enable(self) -> bool:
        """Whether that changed anything."""
        try:
            await self._tree.commit(Delete(f"{self.root}/{DISABLE}"))
        except NoSuchKeyError:
            return False
        return True

    async def disable(self) -> bool:
        """Auditors and workers of the cluster, Java's too, begin nothing new. Whether that changed
        anything."""
        await self._tree.make_path(self.root)
        try:
            await self._tree.commit(Create(f"{self.root}/{DISABLE}"))
        except KeyExistsError:
            return False
        return True

    def watch_enabled(self, changed: Callable[[bool], None]) -> Watch:
        return self._tree.watch_value(
            f"{self.root}/{DISABLE}", lambda value: changed(value is None)
        )

    # -- how long a lost bookie is waited for -------------------------------------------------

    async def delay_s(self) -> int:
        """Return the seconds for which a single lost bookie is waited for before its ledgers are
        copied; 0 where none are set."""
        try:
            found = await self._tree.read(f"{self.root}/{DELAY}")
        except NoSuchKeyError:
            return 0
        return self._delay(found)

    async def set_delay(self, seconds: int) -> None:
        """It wakes the auditor, also where it changes nothing (`trigger`)."""
        await self._tree.make_path(self.root)
        path = f"{self.root}/{DELAY}"
        for _ in range(CHANGES_MAX):
            try:
                await self._tree.commit(Put(path, delay_value(seconds)))
                return
            except NoSuchKeyError:
                pass
            try:
                await self._tree.commit(Create(path, delay_value(seconds)))
                return
            except KeyExistsError:
                pass
        raise MetadataError(
            f"{path} was made and removed by others {CHANGES_MAX} times, and is not set",
            remedy="Try again",
        )

    async def begin_delay(self, seconds: int) -> None:
        """Where none is set."""
        await self._tree.make_path(f"{self.root}/{DELAY}", delay_value(seconds))

    async def trigger(self) -> None:
        """Wake the auditor: it looks for lost bookies at once, without delay."""
        await self.set_delay(await self.delay_s())

    def watch_delay(self, changed: Callable[[int, int], None]) -> Watch:
        """Call `changed` with the seconds and the version of the node: now, and each time that it
        is written."""

        def look(value: Versioned[bytes] | None) -> None:
            if value is not None:
                try:
                    changed(self._delay(value), value.version)
                except MetadataError:
                    pass  # whoever reads it is told

        return self._tree.watch_value(f"{self.root}/{DELAY}", look)

    def _delay(self, found: Versioned[bytes]) -> int:
        try:
            return delay_of(found.value)
        except ValueError:
            raise UnreadableMetadataError(
                f"{self.root}/{DELAY} is {found.value[:40]!r}, not a number of seconds",
                remedy="Set it: quire autorecovery delay SECONDS",
            ) from None

    # -- periodic checks ----------------------------------------------------------------------

    async def checked_ms(self, name: str) -> int | None:
        """When this check was last done; None: never."""
        try:
            found = await self._tree.read(f"{self.root}/{name}")
            return checked_at(found.value)
        except (NoSuchKeyError, ValueError):
            return None

    async def set_checked(self, name: str, at_ms: int) -> None:
        path = f"{self.root}/{name}"
        await self._tree.make_path(path, checked_value(at_ms))
        await self._tree.commit(Put(path, checked_value(at_ms)))
