"""A disk in memory that can lose everything that was not synced.

Each file has two contents: what a reader sees (`data`, the page cache) and what is on the platters
(`durable`). A write changes `data` and is recorded as pending. `sync` applies pending writes to
`durable`. Directory entries work alike: creates, removes and renames are pending until
`sync_directory` of their directory.

`crash()` is a loss of power. The seed decides about each pending write and entry change. A write is
kept, dropped or torn. If a dropped write made the file longer, the file may contain zeros there. A
torn write keeps any subset of its 512-byte sectors. An entry change is kept or dropped. A change
that depends on a dropped one is dropped too, so a rename is never half done.

`kill()` ends only the process, and nothing is lost. After `kill` or `crash`, files that were open
are unusable and the lock is free. `power_loss` lists the possible results of `crash` instead of
drawing one.

A disk takes twice as much memory as was written to it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import PurePosixPath

from quire.storage.interfaces import Buffer
from quire_simulator.machine.inode import EntryChange, Inode, InodeContent, sectors_of, set_entries

DEFAULT_CAPACITY_BYTES = 1 << 34
COLD_READ_PROBABILITY = 0.1


class PowerLossError(BaseException):
    """Raised in the code that was using the disk when `crash_after` struck.

    It is not an `Exception`, so that nobody handles it.
    """


class SimFile:
    """An implementation of `quire.storage.interfaces.File`."""

    def __init__(self, disk: SimDisk, name: str, inode: Inode) -> None:
        self._disk = disk
        self._name = name
        self._inode = inode
        self._generation = disk.generation
        self._closed = False

    def _check(self, *, changes: bool = False) -> Inode:
        if self._disk.before_access is not None:
            self._disk.before_access()
        if self._closed or self._generation != self._disk.generation:
            raise OSError(errno.EBADF, "file is closed, or was opened before a crash", self._name)
        if changes:
            self._disk._operate(self._name)
        return self._inode

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        inode = self._check(changes=True)
        self._disk._maybe_fail("write", self._name)
        data = b"".join(buffers)
        self._disk.total_written_bytes += len(data)
        room = inode.data.size + self._disk.free_bytes()
        _change(inode, offset, data[: max(0, room - offset)], self._disk)
        if offset + len(data) > room:
            raise OSError(errno.ENOSPC, "the simulated disk is full", self._name)

    def sync(self) -> None:
        inode = self._check(changes=True)
        self._disk.total_syncs += 1
        try:
            self._disk._maybe_fail("sync", self._name)
        except OSError:
            # Such pages stay in the cache as clean: a later sync succeeds without writing them.
            self._disk._settle(inode)
            raise
        for change in inode.pending:
            inode.durable.apply(*change)
        inode.pending.clear()

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes | None:
        inode = self._check()
        end = min(offset + size, inode.data.size)
        if any(bad.start < end and offset < bad.stop for bad in inode.bad):
            raise OSError(errno.EIO, "simulated bad sector", self._name)
        if not wait and self._disk._rng.random() < self._disk.cold_read_probability:
            return None
        self._disk.total_read_bytes += max(0, end - offset)
        return inode.data.read(offset, end)

    def read_into(self, offset: int, into: memoryview) -> bool:
        data = self.read(offset, len(into), wait=False)
        if data is None or len(data) < len(into):
            return False
        into[:] = data
        return True

    def prefetch(self, offset: int, size: int) -> None:
        """Do nothing: a simulated disk does not read ahead."""

    def uncache(self, offset: int, size: int) -> None:
        """Do nothing: bit rot affects the cache as well."""

    def preallocate(self, size: int) -> None:
        inode = self._check(changes=True)
        if size - inode.data.size > self._disk.free_bytes():
            raise OSError(errno.ENOSPC, "the simulated disk is full", self._name)
        if size > inode.data.size:
            _change(inode, size, None, self._disk)

    def truncate(self, size: int) -> None:
        _change(self._check(changes=True), size, None, self._disk)

    def size(self) -> int:
        return self._check().data.size

    def close(self) -> None:
        self._closed = True


class SimDisk:
    """An implementation of `quire.storage.interfaces.Disk`.

    A disk outlives the nodes that use it: pass the same disk to the next node.
    """

    def __init__(
        self,
        rng: random.Random,
        name: str,
        *,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
        cold_read_probability: float = COLD_READ_PROBABILITY,
    ) -> None:
        self.path = f"sim:/{name}"
        self.capacity_bytes = capacity_bytes
        """The size of the disk. It may change at any time. If less than the used space, writes that
        need space fail.
        """
        self.cold_read_probability = cold_read_probability
        """The probability that a read with `wait=False` finds its data uncached."""
        self.slowness = 1.0
        """The factor by which a worker of this disk is slower."""
        self.usual_slowness = 1.0
        """The slowness of the disk without faults."""
        self.away = False
        """Whether the disk is not mounted, so that locking it finds no directory."""
        self.total_written_bytes = self.total_read_bytes = 0
        """The bytes that were ever written to files and read from files."""
        self.total_syncs = 0
        """The number of times that a file was ever synced."""
        self.generation = 0
        """The number of times that open files became unusable."""
        self.before_operation: Callable[[], None] | None = None
        """Called before each operation that changes or syncs something."""
        self.before_change: Callable[[str], None] | None = None
        """Called with the name before a file is created, changed or synced."""
        self.before_access: Callable[[], None] | None = None
        """Called before each use of an open file. A stepped thread may wait there."""
        self._rng = rng
        self._entries: dict[str, Inode | bool] = {"": True}
        self._durable_entries: dict[str, Inode | bool] = {"": True}
        self._pending: list[EntryChange] = []
        self._used = 0
        self._locked = False
        self._faults: list[tuple[str, str | None]] = []
        self._crash_countdown = 0
        self._crashed: Callable[[], None] = lambda: None

    # -- interfaces.Disk ---------------------------------------------------------------------------

    def create(self, name: str) -> SimFile:
        name = _clean(name)
        if name in self._entries:
            raise FileExistsError(errno.EEXIST, "exists", name)
        self._parent(name)
        self._operate(name)
        inode = Inode()
        self._change_names({name: inode})
        return SimFile(self, name, inode)

    def open(self, name: str) -> SimFile:
        name = _clean(name)
        return SimFile(self, name, self._file(name))

    def exists(self, name: str) -> bool:
        return _clean(name) in self._entries

    def list(self, directory: str = "") -> list[str]:
        directory = _clean(directory)
        for path in (*ancestors_of(directory), directory):
            if isinstance(self._entries.get(path), Inode):
                raise NotADirectoryError(errno.ENOTDIR, "is a file", path)
        names = (name for name in self._entries if name and _parent(name) == directory)
        return sorted(name.rpartition("/")[2] for name in names)

    def make_directory(self, name: str) -> None:
        """Create a directory that is durable at once, as on the real disk: each level is synced."""
        name = _clean(name)
        for path in (*reversed(PurePosixPath(name).parents), name):
            path = _clean(str(path))
            entry = self._entries.get(path)
            if entry is None:
                self._operate()
                self._change_names({path: True})
                self.sync_directory(_parent(path))
            elif entry is not True:
                raise NotADirectoryError(errno.ENOTDIR, "is a file", path)

    def remove(self, name: str) -> None:
        name = _clean(name)
        inode = self._file(name)
        self._operate()
        self._change_names({name: None})
        self._unlink(inode)

    def rename(self, old: str, new: str) -> None:
        old, new = _clean(old), _clean(new)
        inode = self._file(old)
        self._parent(new)
        if old == new:
            return
        replaced = self._file(new) if new in self._entries else None
        self._operate()
        self._change_names({old: None, new: inode})
        if replaced is not None:
            self._unlink(replaced)

    def sync_directory(self, directory: str = "") -> None:
        directory = _clean(directory)
        if self._entries.get(directory) is not True:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        self._operate()
        # Changes that a synced change builds on, such as a rename from elsewhere, become durable
        # too.
        names: set[str] = set()
        synced, rest = [], []
        for change in reversed(self._pending):
            if any(name in names or _parent(name) == directory for name in change.names):
                names.update(change.names)
                synced.append(change)
            else:
                rest.append(change)
        for change in reversed(synced):
            set_entries(self._durable_entries, change)
        self._pending = rest[::-1]

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self._used)

    def total_bytes(self) -> int:
        return self.capacity_bytes

    def file_system(self) -> int:
        return id(self)

    def lock(self) -> None:
        if self.away:
            raise FileNotFoundError(errno.ENOENT, "no such directory", self.path)
        if self._locked:
            raise BlockingIOError(errno.EAGAIN, "locked by another process", self.path)
        self._locked = True

    def close(self) -> None:
        self._locked = False

    # -- crashes ------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process but not the machine: the page cache stays."""
        self.generation += 1
        self._locked = False
        self._crash_countdown = 0

    def crash(self) -> None:
        """Lose power: what is durable remains, and the seed decides about the rest."""
        self.kill()
        self._settle_entries()
        inodes = {id(e): e for e in self._entries.values() if isinstance(e, Inode)}
        for inode in inodes.values():
            self._settle(inode)
            inode.data = inode.durable.copy()
            inode.linked = True
        self._used = sum(inode.data.size for inode in inodes.values())

    def crash_after(self, operations: int, then: Callable[[], None]) -> None:
        """Lose power in place of the n-th future operation that changes or syncs something.

        1 is the next operation. Then `then` is called, which kills the node, and `PowerLossError`
        is raised.
        """
        assert operations > 0
        self._crash_countdown = operations
        self._crashed = then

    # -- other disks --------------------------------------------------------------------------

    @property
    def pending_names(self) -> Sequence[EntryChange]:
        """The changes of names that no `sync_directory` has covered, oldest first."""
        return tuple(self._pending)

    @property
    def durable_entries(self) -> dict[str, Inode | bool]:
        """The durable directory entries: name -> file, or True for a directory."""
        return dict(self._durable_entries)

    def copy(self) -> SimDisk:
        """Return a copy with the same durable and pending contents, without scheduled faults."""
        disk = self._another()
        disk._entries, disk._durable_entries, disk._pending = deepcopy(
            (self._entries, self._durable_entries, self._pending)
        )
        disk._used = self._used
        return disk

    def holding(self, contents: Mapping[str, InodeContent | None]) -> SimDisk:
        """Return another disk like this one with only these durable files (None: a directory)."""
        disk = self._another()
        for name, content in contents.items():
            if content is None:
                entry: Inode | bool = True
            else:
                entry = Inode(content.copy(), content.copy())
                disk._used += content.size
            disk._entries[name] = disk._durable_entries[name] = entry
        return disk

    def _another(self) -> SimDisk:
        disk = SimDisk(
            random.Random(1), "", capacity_bytes=self.capacity_bytes,
            cold_read_probability=self.cold_read_probability,
        )  # fmt: skip
        disk.path = self.path
        return disk

    def _operate(self, name: str = "") -> None:
        if self.before_operation is not None:
            self.before_operation()
        if self.before_change is not None and name:
            self.before_change(name)
        if self._crash_countdown:
            self._crash_countdown -= 1
            if not self._crash_countdown:
                self.crash()
                self._crashed()
                raise PowerLossError(f"{self.path} lost power")

    def _settle(self, inode: Inode) -> None:
        """Decide which parts of the unsynced writes reached the platters."""
        keep = self._rng.choice((0.0, 1.0, self._rng.random()))
        torn = (1.0 - keep) * self._rng.choice((0.0, 0.5))
        for offset, data in inode.pending:
            fate = self._rng.random()
            if fate < keep:
                inode.durable.apply(offset, data)
            elif data is None:
                continue
            elif fate < keep + torn:
                for start, sector in sectors_of(offset, data):
                    if self._rng.random() < 0.5:
                        inode.durable.apply(start, sector)
            elif self._rng.random() < 0.5:
                inode.durable.apply(max(inode.durable.size, offset + len(data)), None)
        inode.pending.clear()

    def _settle_entries(self) -> None:
        keep = self._rng.choice((0.0, 1.0, self._rng.random()))
        dropped: set[str] = set()
        for change in self._pending:
            if dropped.isdisjoint(change.names) and self._rng.random() < keep:
                set_entries(self._durable_entries, change)
            else:
                dropped.update(change.names)
        self._pending.clear()
        self._entries = dict(self._durable_entries)

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.crash()
        self._entries, self._durable_entries = {"": True}, {"": True}
        self._used = 0

    # -- faults -------------------------------------------------------------------------------

    def fail_sync_once(self, name: str | None = None) -> None:
        """Make the next `sync` (of this file) fail.

        The seed decides at once which of the affected data becomes durable. No later sync writes
        the rest, although it can be read until a crash.
        """
        self._faults.append(("sync", name))

    def fail_write_once(self, name: str | None = None) -> None:
        """Make the next write (to this file) raise EIO and write nothing."""
        self._faults.append(("write", name))

    def fail_reads(self, name: str, offset: int = 0, size: int = 1 << 62) -> None:
        """Make reads that touch this range raise EIO until `mend_reads`."""
        self._file(_clean(name)).bad.append(range(offset, offset + size))

    def mend_reads(self, name: str) -> None:
        self._file(_clean(name)).bad.clear()

    def flip_bit(self, name: str, offset: int, bit: int | None = None) -> None:
        """Flip one bit of this byte durably. If `bit` is None, the seed chooses it."""
        inode = self._file(_clean(name))
        assert offset < inode.data.size, "there is no such byte"
        mask = 1 << (self._rng.randrange(8) if bit is None else bit)
        for content in (inode.data, inode.durable):
            if offset < content.size:
                content.apply(offset, bytes([content.read(offset, offset + 1)[0] ^ mask]))

    def rot(self, name: str, spacing_bytes: int) -> int:
        """Flip one bit in every `spacing_bytes` written bytes on average.

        Return the number of flipped bits.
        """
        size = len(self._file(_clean(name)).data.written)
        for _ in range(size // spacing_bytes):
            self.flip_bit(name, self._rng.randrange(size))
        return size // spacing_bytes

    def written_bytes(self, name: str) -> int:
        """Return the end of the data that was written to this file and not truncated since.

        Preallocated space behind it does not count, but zeros that were written do.
        """
        return len(self._file(_clean(name)).data.written)

    def durable_bytes(self, name: str) -> int:
        """Return the same as `written_bytes`, for the durable data of this file."""
        return len(self._file(_clean(name)).durable.written)

    def identity(self, name: str) -> object:
        """Return an object that no other file has, not even one with the same name later."""
        return self._file(_clean(name))

    def restore(self, name: str, backup: SimDisk) -> bool:
        """Replace the content of this file by its durable content in `backup`, a copy of the disk.

        Return whether they differed.
        """
        inode, older = self._file(_clean(name)), backup._file(_clean(name)).durable
        if inode.data.written == older.written and inode.data.size == older.size:
            return False
        self._used += older.size - inode.data.size
        inode.data, inode.durable = older.copy(), older.copy()
        inode.pending.clear()
        return True

    def calm(self) -> None:
        """Cancel all scheduled faults that have not struck, so that nothing fails from now on."""
        self._faults.clear()
        self._crash_countdown = 0
        self.slowness = self.usual_slowness

    def _maybe_fail(self, operation: str, name: str) -> None:
        for fault in ((operation, None), (operation, name)):
            if fault in self._faults:
                self._faults.remove(fault)
                raise OSError(errno.EIO, f"simulated failure of {operation}", name)

    # -- names --------------------------------------------------------------------------------

    def _file(self, name: str) -> Inode:
        entry = self._entries.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        if not isinstance(entry, Inode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", name)
        return entry

    def _parent(self, name: str) -> None:
        if self._entries.get(_parent(name)) is not True:
            raise FileNotFoundError(errno.ENOENT, "no such directory", _parent(name))

    def _unlink(self, inode: Inode) -> None:
        inode.linked = False
        self._used -= inode.data.size

    def _change_names(self, names: dict[str, Inode | bool | None]) -> None:
        change = EntryChange(names)
        set_entries(self._entries, change)
        self._pending.append(change)


def _change(inode: Inode, offset: int, data: bytes | None, disk: SimDisk) -> None:
    before = inode.data.size
    inode.data.apply(offset, data)
    inode.pending.append((offset, data))
    if inode.linked:
        disk._used += inode.data.size - before


def _clean(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is not a relative name below the data directory")
    return "" if str(path) == "." else str(path)


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def ancestors_of(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]
