"""Single items of the metadata store that cannot be read, while everything else can.

A ledger's node, a mark or a cookie is damaged, or a mark is at the wrong path. Some of them are
restored after a while. The others last until the check at the end (`invariants.unreadable.judge`)
has shown that nothing else suffers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from quire.codec.metadata.underreplication import LEDGERS, mark_path
from quire.metadata.common import ancestors_of, parent_of
from quire.metadata.tree import Create, Delete, Operation
from quire.metadata.uri import replication_root
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.nodes import PERSISTENT
from quire_simulator.plans.faults import Fault

DAMAGED = (
    b"BookieMetadataFormatVersion\t9\nof a time to come",
    b"BookieMetadataFormatVersion\t3\n\xff\xff\xff",
    b"\x00" * 64,
    b"",
)
"""The choices for the bytes that are found in place of a ledger's metadata."""
NONSENSE = b"\xffno value at all {"
"""The bytes that are found in place of a mark or a cookie."""
DENIED = 0.2
"""The probability that the store refuses to show a ledger's node, which is not damaged."""
LASTING = 0.5
"""The probability that an item is unreadable until the end of the faults, and longer.

A cookie never is, because its bookie needs it to start.
"""
LASTING_MAX = 3
SLOTS = 1 << 16
"""The number of ledger ids below one node of the lowest level of the tree of marks."""

Undo = Callable[[], None]


def _nothing() -> None:
    pass


@dataclass
class UnreadableItems:
    """The unreadable items of a cluster. They can be restored by `mend`, or one by one."""

    cluster: MemoryCluster
    trace: Callable[..., None]
    struck: dict[str, int] = field(default_factory=dict)
    """How many items of each kind were made unreadable so far."""
    lasting: int = 0
    """The number of items that stay unreadable until `mend`."""
    marks: dict[str, int] = field(default_factory=dict)
    """The paths of marks that cannot be read, with the ledgers whose marks they are."""
    cookies: set[str] = field(default_factory=set)
    """The bookies whose cookies cannot be read."""
    _undo: list[Undo] = field(default_factory=list)

    def strike(self, fault: Fault, chance: random.Random) -> Undo:
        """Make one item unreadable, and return what restores it."""
        made = {
            "unreadable ledger": self._ledger,
            "unreadable mark": self._mark,
            "stray mark": self._stray,
            "unreadable cookie": self._cookie,
        }[fault.kind](chance)
        if made is None:
            return _nothing  # There is no such item now.
        what, undo = made
        self.struck[fault.kind] = self.struck.get(fault.kind, 0) + 1
        lasts = chance.random() < LASTING and self.lasting < LASTING_MAX
        lasts = lasts and fault.kind != "unreadable cookie"
        self.trace("metadata", fault.kind, what=what, lasts=lasts)
        if not lasts:
            return undo
        self.lasting += 1
        self._undo.append(undo)
        return _nothing

    def mend(self) -> None:
        """Restore everything that is still unreadable."""
        for undo in self._undo:
            undo()
        self._undo.clear()
        self.lasting = 0

    def ledgers(self) -> set[int]:
        """Return the ledgers that autorecovery cannot repair now.

        Their metadata or their marks cannot be read.
        """
        there = {number for path, number in self.marks.items() if self.cluster.tree.get(path)}
        return there.union(self.cluster.unreadable).intersection(self.cluster.ledgers)

    def _ledger(self, chance: random.Random) -> tuple[str, Undo] | None:
        cluster = self.cluster
        able = [one for one in sorted(cluster.ledgers) if one not in cluster.unreadable]
        if not able:
            return None
        ledger_id = chance.choice(able)
        node = cluster.ledgers[ledger_id]
        cluster.unreadable[ledger_id] = None if chance.random() < DENIED else chance.choice(DAMAGED)

        def undo() -> None:
            if cluster.ledgers.get(ledger_id) is node:
                cluster.unreadable.pop(ledger_id, None)

        return f"ledger {ledger_id}", undo

    def _mark(self, chance: random.Random) -> tuple[str, Undo] | None:
        root = replication_root(f"memory://{self.cluster.name}")
        tree = self.cluster.tree
        able = [path for path in tree.below(f"{root}/{LEDGERS}") if "/urL" in path]
        able = sorted(path for path in able if path not in self.marks)
        if not able:
            return None
        path = chance.choice(able)
        node = tree.get(path)
        assert node is not None
        value, node.value = node.value, NONSENSE
        node.version += 1
        self.marks[path] = int(path.rpartition("urL")[2])

        def undo() -> None:
            self.marks.pop(path, None)
            if tree.get(path) is node and node.value == NONSENSE:
                node.value = value
                node.version += 1

        return path, undo

    def _stray(self, chance: random.Random) -> tuple[str, Undo] | None:
        """Create a mark of another ledger below the node for the mark of a ledger."""
        root = replication_root(f"memory://{self.cluster.name}")
        if not self.cluster.ledgers:
            return None
        ledger_id = chance.choice(sorted(self.cluster.ledgers))
        path = f"{parent_of(mark_path(root, ledger_id))}/urL{SLOTS + ledger_id:010}"
        if self.cluster.tree.get(path) is not None:
            return None
        missing = [one for one in ancestors_of(path) if self.cluster.tree.get(one) is None]
        self._commit(*(Create(one) for one in missing))
        self.marks[path] = SLOTS + ledger_id

        def undo() -> None:
            self.marks.pop(path, None)
            if self.cluster.tree.get(path) is not None:
                self._commit(Delete(path))

        return path, undo

    def _commit(self, *operations: Operation) -> None:
        _, changes = self.cluster.tree.commit(operations, PERSISTENT)
        self.cluster.tree_changed(changes)

    def _cookie(self, chance: random.Random) -> tuple[str, Undo] | None:
        cookies = self.cluster.cookies
        able = [bookie for bookie in sorted(cookies) if bookie not in self.cookies]
        if not able:
            return None
        bookie = chance.choice(able)
        node = cookies[bookie]
        data, node.data = node.data, NONSENSE
        node.version += 1
        self.cookies.add(bookie)

        def undo() -> None:
            self.cookies.discard(bookie)
            if cookies.get(bookie) is node and node.data == NONSENSE:
                node.data = data
                node.version += 1

        return f"cookie of {bookie}", undo
