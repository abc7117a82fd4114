"""The under-replication tree as a whole: the list of marked ledgers, and the settings and requests
that auditors and operators exchange through the tree. `locks` has the mark of a single ledger.

Java's auditor, workers and shell read and write the same nodes.
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
    SwitchedOff,
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
"""The largest number of misplaced nodes that one walk over the marks reports."""
CHANGES_MAX = 10
"""The number of attempts to change a node that others create and delete at the same time."""


class ReplicationMarks:
    """The marks of all ledgers, and the settings of autorecovery in the metadata store.

    Calls raise MetadataError. Reads are cancel-safe. The outcome of a cancelled change is unknown.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.root = replication_root(store.uri)
        self._tree = store.tree

    async def prepare(self) -> None:
        """Create missing parts of the under-replication tree.

        Raises MetadataError if the tree has a layout that this version does not know.
        """
        layout = f"{self.root}/{LAYOUT}"
        await self._tree.make_path(layout, LAYOUT_VALUE)
        value = (await self._tree.read(layout)).value
        try:
            check_layout(value)
        except ValueError as error:
            raise MetadataError(
                f"the node {layout} has a layout of the under-replication tree that Quire does not "
                f"know: {error}",
                remedy="Use the version of BookKeeper or Quire that created it",
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

        Only the names below one node of each level are in memory. A ledger may turn out not to be
        marked any more. Parents without children remain when the removal of a mark was interrupted;
        `prune` removes those above the lowest level.

        A node whose name cannot lead to a mark is skipped and never removed. `malformed` receives
        its path and the reason, for at most `MALFORMED_MAX` nodes. Raises MetadataError.
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
            pass  # another process removed or used it

    async def _names(self, groups: list[str] | tuple[()], rng: random.Random | None) -> list[str]:
        """Return the names of the children of a node, in the reverse of the order to visit them."""
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
        """Return the ids of the ledgers whose lock is held, because a process repairs them.

        Raises MetadataError.
        """
        try:
            names = await self._tree.children(f"{self.root}/{LOCKS}")
        except NoSuchKeyError:
            return set()
        return {found for name in names if (found := locked_ledger(name)) is not None}

    def watch_ledgers(self, changed: Callable[[], None]) -> Watch:
        """Call `changed` when ledgers may have been marked.

        It is not called for every mark, but only when the first mark in a range of ids is created
        or the last one is removed. Ids whose upper 16 bits are equal are in the same range.
        """
        return self._tree.watch_children(f"{self.root}/{LEDGERS}", lambda names: changed())

    # -- the switch ---------------------------------------------------------------------------

    async def enabled(self) -> bool:
        """Return whether autorecovery is enabled in the cluster. Raises MetadataError."""
        return not await self._tree.exists(f"{self.root}/{DISABLE}")

    async def switched_off(self) -> SwitchedOff | None:
        """Return who switched autorecovery off and when, as far as it is known.

        The result is None if autorecovery is enabled. Raises MetadataError.
        """
        try:
            return SwitchedOff.decode((await self._tree.read(f"{self.root}/{DISABLE}")).value)
        except NoSuchKeyError:
            return None

    async def enable(self) -> bool:
        """Enable autorecovery in the cluster. Return False if it was enabled already.

        Raises MetadataError.
        """
        try:
            await self._tree.commit(Delete(f"{self.root}/{DISABLE}"))
        except NoSuchKeyError:
            return False
        return True

    async def disable(self, switched: SwitchedOff | None = None) -> bool:
        """Disable autorecovery: auditors and workers, Java's included, start no new work.

        `switched` says who does it and when, for people. Return False if autorecovery was disabled
        already. Raises MetadataError.
        """
        await self._tree.make_path(self.root)
        value = b"" if switched is None else switched.encode()
        try:
            await self._tree.commit(Create(f"{self.root}/{DISABLE}", value))
        except KeyExistsError:
            return False
        return True

    def watch_enabled(self, changed: Callable[[bool], None]) -> Watch:
        return self._tree.watch_value(
            f"{self.root}/{DISABLE}", lambda value: changed(value is None)
        )

    # -- the delay ----------------------------------------------------------------------------

    async def delay_s(self) -> int:
        """Return the seconds to wait for a lost bookie before its ledgers are copied.

        The result is 0 if no delay is set. Raises UnreadableMetadataError if the value cannot be
        decoded, and MetadataError.
        """
        try:
            found = await self._tree.read(f"{self.root}/{DELAY}")
        except NoSuchKeyError:
            return 0
        return self._delay(found)

    async def set_delay(self, seconds: int) -> None:
        """Set the seconds to wait for a lost bookie before its ledgers are copied.

        This wakes the auditor even if the value stays the same, which `trigger` uses. Raises
        MetadataError if the store fails, or if other processes change the value too often.
        """
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
            "the delay before a lost bookie is repaired was not set: other processes created and "
            f"removed {path} {CHANGES_MAX} times meanwhile",
            remedy="Try again",
        )

    async def begin_delay(self, seconds: int) -> None:
        """Set the seconds to wait for a lost bookie, if no such delay is set.

        Raises MetadataError.
        """
        await self._tree.make_path(f"{self.root}/{DELAY}", delay_value(seconds))

    async def trigger(self) -> None:
        """Make the auditor look for lost bookies at once, without delay.

        Raises UnreadableMetadataError if the present delay cannot be decoded, and MetadataError.
        """
        await self.set_delay(await self.delay_s())

    def watch_delay(self, changed: Callable[[int, int], None]) -> Watch:
        """Call `changed` with the delay in seconds and the version of its node.

        It is called once at the beginning, and whenever the node is written. It is not called while
        no delay is set, or while the value cannot be decoded.
        """

        def look(value: Versioned[bytes] | None) -> None:
            if value is not None:
                try:
                    changed(self._delay(value), value.version)
                except MetadataError:
                    pass  # `delay_s` raises the error

        return self._tree.watch_value(f"{self.root}/{DELAY}", look)

    def _delay(self, found: Versioned[bytes]) -> int:
        try:
            return delay_of(found.value)
        except ValueError:
            raise UnreadableMetadataError(
                "the delay before a lost bookie is repaired cannot be read: the node "
                f"{self.root}/{DELAY} has {found.value[:40]!r}, not a number of seconds",
                remedy="Set it with `quire autorecovery delay SECONDS`",
            ) from None

    # -- periodic checks ----------------------------------------------------------------------

    async def checked_ms(self, name: str) -> int | None:
        """Return when a periodic check was last done, in milliseconds since 1970.

        `name` is the name of the check's node. The result is None if the check was never done, or
        if the value cannot be decoded. Raises MetadataError.
        """
        try:
            found = await self._tree.read(f"{self.root}/{name}")
            return checked_at(found.value)
        except (NoSuchKeyError, ValueError):
            return None

    async def set_checked(self, name: str, at_ms: int) -> None:
        path = f"{self.root}/{name}"
        await self._tree.make_path(path, checked_value(at_ms))
        await self._tree.commit(Put(path, checked_value(at_ms)))
