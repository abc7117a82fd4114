"""Enumerate the states of a disk after a power loss, of which `SimDisk.crash` draws one.

Three things are decided for each state, independently of each other, as POSIX permits:

1. Names: any subset of the creates, removes and renames that no `sync_directory` has covered.
   Each is kept completely or not at all, and only together with the changes that it builds on.
   This includes journaling file systems, which keep any prefix, and file systems that write a
   rename before earlier operations.
2. The size of each file: any prefix of the changes by writes past the end, truncations and
   preallocations. What a truncation has removed does not reappear.
3. Each 512-byte sector of an unsynced write: its old contents, or what any of the later writes
   made of it.

If there are more combinations than wanted, the extremes come first, then a sample. The extremes are
nothing kept, everything kept, names without contents, contents without names, and single parts at
one end while all others are at the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from math import prod
from typing import Protocol

from quire_simulator.machine.disk import SimDisk, ancestors_of
from quire_simulator.machine.inode import (
    SECTOR_BYTES,
    EntryChange,
    Inode,
    InodeContent,
    sectors_of,
    set_entries,
)

EXACT_NAMES = 10
"""The largest number of name changes for which subsets are counted exactly."""
DRAWS_PER_STATE = 4
"""The number of draws for each wanted state. Many draws give the same state."""

Variant = tuple[int, ...]


class PowerLoss:
    """The states in which a disk may be found if it loses power now.

    Iterate over it before the disk is used again.
    """

    def __init__(self, disk: SimDisk, rng: random.Random, states_max: int) -> None:
        self._disk = disk
        self._rng = rng
        self._states_max = states_max
        self._names = _Names(disk.pending_names)
        named = [*disk.durable_entries.values()]
        for change in disk.pending_names:
            named += [entry for entry in change.names.values() if entry is not None]
        inodes = {id(entry): entry for entry in named if isinstance(entry, Inode)}
        self._files = {key: _File(inode) for key, inode in inodes.items()}
        self._open = [key for key, file in self._files.items() if file.count > 1]
        self._parts: list[_Part] = [self._names, *(self._files[key] for key in self._open)]
        self.combinations = prod(part.count for part in self._parts)
        """The number of combinations. Several may give the same state."""

    @property
    def exhaustive(self) -> bool:
        """Whether all combinations are included."""
        return self.combinations <= self._states_max

    def __iter__(self) -> Iterator[tuple[bytes, SimDisk]]:
        """Yield distinct states up to the limit, each as its digest and a disk."""
        seen: set[bytes] = set()
        for choice in self._choices():
            if len(seen) >= self._states_max:
                return
            digest, disk = self._made(choice)
            if digest not in seen:
                seen.add(digest)
                yield digest, disk

    def _choices(self) -> Iterator[tuple[Variant, ...]]:
        if self.exhaustive:
            yield from product(*(part.variants() for part in self._parts))
            return
        corners = [part.corners() for part in self._parts]
        yield tuple(part[0] for part in corners)
        yield tuple(part[-1] for part in corners)
        for first, others in ((0, -1), (-1, 0)):
            yield (corners[0][first], *(part[others] for part in corners[1:]))
        rest = []
        for at, part in enumerate(corners):
            for corner in part[1:-1]:
                for end in (0, -1):
                    ends = [other[end] for other in corners]
                    rest.append((*ends[:at], corner, *ends[at + 1 :]))
        self._rng.shuffle(rest)
        # Draw at least half of the states at random, because the corners show few combinations.
        yield from rest[: max(4, self._states_max // 2)]
        for _ in range(DRAWS_PER_STATE * self._states_max):
            yield tuple(
                self._rng.choice(corners[at]) if self._rng.random() < 0.5 else part.draw(self._rng)
                for at, part in enumerate(self._parts)
            )
        yield from rest

    def _made(self, choice: Sequence[Variant]) -> tuple[bytes, SimDisk]:
        variants = dict(zip(self._open, choice[1:]))
        entries = self._names.entries(self._disk.durable_entries, choice[0])
        contents: dict[str, InodeContent | None] = {}
        digest = blake2b(digest_size=16)
        for name in sorted(entries):
            entry = entries[name]
            content, mark = None, b"directory"
            if isinstance(entry, Inode):
                file = self._files[id(entry)]
                content, mark = file.content(variants.get(id(entry)) or file.corners()[-1])
            contents[name] = content
            digest.update(b"%d %s %s" % (len(name), name.encode(), mark))
        return digest.digest(), self._disk.holding(contents)


class _Part(Protocol):
    """A part of the state. Its first corner keeps nothing, and its last keeps everything."""

    count: int

    def variants(self) -> Iterator[Variant]: ...

    def corners(self) -> list[Variant]: ...

    def draw(self, rng: random.Random) -> Variant: ...


class _Names:
    """The pending changes of names. A variant lists the kept changes in ascending order."""

    def __init__(self, changes: Sequence[EntryChange]) -> None:
        self._changes = changes
        self._needs: list[set[int]] = []
        for at, change in enumerate(changes):
            needs: set[int] = set()
            for before in range(at):
                if not changes[before].names.keys().isdisjoint(change.names):
                    needs |= {before, *self._needs[before]}
            self._needs.append(needs)
        exact = len(changes) <= EXACT_NAMES
        self.count = sum(1 for _ in self.variants()) if exact else 1 << len(changes)

    def variants(self) -> Iterator[Variant]:
        for bits in range(1 << len(self._changes)):
            kept = tuple(at for at in range(len(self._changes)) if bits >> at & 1)
            if all(self._needs[at].issubset(kept) for at in kept):
                yield kept

    def corners(self) -> list[Variant]:
        every = range(len(self._changes))
        prefixes = [tuple(range(end)) for end in every]
        alone = [tuple(sorted({at, *self._needs[at]})) for at in every]
        without = [self._closed({other for other in every if other != at}) for at in every]
        return list(dict.fromkeys([*prefixes[:1], *prefixes, *alone, *without, tuple(every)]))

    def draw(self, rng: random.Random) -> Variant:
        keep = rng.random()
        return self._closed({at for at in range(len(self._changes)) if rng.random() < keep})

    def _closed(self, kept: set[int]) -> Variant:
        return tuple(at for at in sorted(kept) if self._needs[at] <= kept)

    def entries(self, durable: dict[str, Inode | bool], kept: Variant) -> dict[str, Inode | bool]:
        """Return the directory entries, without those in a directory that does not exist."""
        entries = dict(durable)
        for at in kept:
            set_entries(entries, self._changes[at])
        return {
            name: entry
            for name, entry in entries.items()
            if all(parent in entries for parent in ancestors_of(name))
        }


@dataclass(frozen=True, slots=True)
class _Layout:
    """A file after some of the changes of its size."""

    content: InodeContent
    """The contents without any unsynced write."""
    sectors: list[tuple[int, list[bytes]]]
    """Each sector that may differ, as its offset and its possible contents, oldest first."""

    @property
    def count(self) -> int:
        return prod(len(versions) for _, versions in self.sectors)


class _File:
    """The possible contents of a file.

    A variant is the number of a layout, followed by the version of each of its sectors.
    """

    def __init__(self, inode: Inode) -> None:
        sizes = _size_changes(inode)
        self._layouts = [_layout(inode, kept) for kept in range(sizes + 1)]
        self._made: dict[Variant, tuple[InodeContent, bytes]] = {}
        self.count = sum(layout.count for layout in self._layouts)

    def variants(self) -> Iterator[Variant]:
        for at, layout in enumerate(self._layouts):
            for versions in product(*(range(len(one)) for _, one in layout.sectors)):
                yield (at, *versions)

    def corners(self) -> list[Variant]:
        first, last = 0, len(self._layouts) - 1
        old, new = self._old, self._new
        newest = new(last)
        found = [old(first), old(last), new(first)]
        for middle in range(1, last):
            found += [old(middle), new(middle)]
        sectors = len(newest) - 1
        edges = {0, 1, sectors // 2, sectors - 2, sectors - 1}
        for at in sorted(edge for edge in edges if 0 <= edge < sectors):
            found.append((*newest[: 1 + at], 0, *newest[2 + at :]))
            found.append((*old(last)[: 1 + at], newest[1 + at], *old(last)[2 + at :]))
        for parity in (0, 1):
            found.append((last, *(v * (at % 2 == parity) for at, v in enumerate(newest[1:]))))
        # Cut in the middle, once as by a device that writes in order, and once in the opposite
        # order.
        half = 1 + sectors // 2
        found.append((*newest[:half], *old(last)[half:]))
        found.append((last, *old(last)[1:half], *newest[half:]))
        return [*(one for one in dict.fromkeys(found) if one != newest), newest]

    def draw(self, rng: random.Random) -> Variant:
        at = rng.randrange(len(self._layouts))
        keep = rng.random()
        versions = [len(versions) for _, versions in self._layouts[at].sectors]
        return (at, *(rng.randrange(1, n) if rng.random() < keep else 0 for n in versions))

    def content(self, variant: Variant) -> tuple[InodeContent, bytes]:
        """Return the contents, and a digest of them."""
        made = self._made.get(variant)
        if made is None:
            layout = self._layouts[variant[0]]
            content = layout.content.copy()
            for (offset, versions), version in zip(layout.sectors, variant[1:]):
                content.apply(offset, versions[version][: content.size - offset])
            data = blake2b(bytes(content.written).rstrip(b"\0"), digest_size=16).digest()
            made = self._made[variant] = content, b"%d %s" % (content.size, data)
        return made

    def _old(self, layout: int) -> Variant:
        return (layout, *(0 for _ in self._layouts[layout].sectors))

    def _new(self, layout: int) -> Variant:
        return (layout, *(len(versions) - 1 for _, versions in self._layouts[layout].sectors))


def _size_changes(inode: Inode) -> int:
    size, changes = inode.durable.size, 0
    for offset, data in inode.pending:
        end = offset if data is None else max(size, offset + len(data))
        changes += end != size
        size = end
    return changes


def _layout(inode: Inode, sizes_kept: int) -> _Layout:
    """Return the file with the first `sizes_kept` changes of its size and no later ones."""
    content = inode.durable.copy()
    versions: dict[int, list[bytes]] = {}
    hidden_from: int | None = None
    live = size = content.size
    changes = 0
    for offset, data in inode.pending:
        end = offset if data is None else max(live, offset + len(data))
        changes += end != live
        kept = changes <= sizes_kept
        if kept:
            size = end
        if data is not None:
            for start, piece in sectors_of(offset, data):
                if hidden_from is None or start < hidden_from:
                    _overlay(content, versions, start, piece)
        elif end < live and kept:
            content.apply(end, None)
            for sector in [one for one in versions if one + SECTOR_BYTES > end]:
                left = max(0, end - sector)
                cut = [one[:left].ljust(SECTOR_BYTES, b"\0") for one in versions[sector]]
                versions[sector] = list(dict.fromkeys(cut))
        elif end < live:
            # A truncation freed these blocks, so what was written there since is not in this file
            # yet.
            hidden_from = end if hidden_from is None else min(hidden_from, end)
        live = end
    content.apply(size, None)
    sectors = [
        (sector, list(dict.fromkeys(found)))
        for sector, found in sorted(versions.items())
        if sector < size
    ]
    return _Layout(content, [(at, found) for at, found in sectors if len(found) > 1])


def _overlay(
    content: InodeContent, versions: dict[int, list[bytes]], start: int, piece: bytes
) -> None:
    sector = start - start % SECTOR_BYTES
    found = versions.get(sector)
    if found is None:
        base = content.read(sector, sector + SECTOR_BYTES)
        found = versions[sector] = [base.ljust(SECTOR_BYTES, b"\0")]
    before, at = found[-1], start - sector
    after = before[:at] + piece + before[at + len(piece) :]
    if after != before:
        found.append(after)
