"""What a store tells whoever has it, all of it on the event loop."""

from __future__ import annotations

from collections.abc import Callable

from quire.errors import StorageError
from quire.storage.background.compactor import Compaction
from quire.storage.background.quarantine_record import SegmentDamage


class StoreEvents:
    """Set what is to be called; what is None is not told."""

    def __init__(self) -> None:
        self.on_writable_changed: Callable[[bool], None] | None = None
        """Called with the new value of `writable`, and by `start` where that is False. Of several
        directories: when any begins or ceases to take adds."""
        self.on_failure: Callable[[StorageError], None] | None = None
        """Called once, when a write or a sync has failed, in every directory that there is."""
        self.on_compaction: Callable[[Compaction], None] | None = None
        """Called when a compaction has come to its end, or failed."""
        self.on_damage: Callable[[str, SegmentDamage, bool], None] | None = None
        """Called with the directory's path when a segment is found damaged, and (True) when it is
        so no more."""
        self.on_drained: Callable[[], None] | None = None
        """Called when the queue, having been full, is half empty."""

    def tell_writable(self, writable: bool) -> None:
        if self.on_writable_changed is not None:
            self.on_writable_changed(writable)

    def tell_failure(self, error: StorageError) -> None:
        if self.on_failure is not None:
            self.on_failure(error)

    def tell_compaction(self, one: Compaction) -> None:
        if self.on_compaction is not None:
            self.on_compaction(one)

    def tell_damage(self, path: str, damage: SegmentDamage, healed: bool) -> None:
        if self.on_damage is not None:
            self.on_damage(path, damage, healed)

    def tell_drained(self) -> None:
        if self.on_drained is not None:
            self.on_drained()
