"""Notes of who deleted a ledger by its id, for people who miss it later.

Commands and the HTTP route that delete a ledger by its id leave a note, because nothing else of the
ledger is left. Deletions by owners, such as the truncation of a stream, leave none. No decision
about data depends on a note.

Every call raises MetadataError if the metadata store fails.
"""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict, dataclass

from quire._runtime.names.process_name import process_name
from quire._runtime.units import utc_text
from quire.codec.metadata.stored_json import stored_json
from quire.errors import KeyExistsError, NoSuchKeyError, VersionConflictError
from quire.metadata.interface import MetadataStore

KEPT_MAX = 1_000
"""The largest number of notes that are kept. Those of the smallest ledger ids are removed first."""
_KEY = ("ledgers", "deleted")


@dataclass(frozen=True, slots=True)
class Deletion:
    """The deletion of one ledger by its id."""

    by: str
    """The user and the process, such as alice@vm.4711."""
    at_ms: int
    """The Unix time in milliseconds, by the clock of that process."""
    how: str
    """The command or the request."""

    def __str__(self) -> str:
        return f"{self.by} deleted it at {utc_text(self.at_ms)} ({self.how})"


def this_user() -> str:
    """Return the user and the name of this process, as a `Deletion` has them."""
    try:
        return f"{getpass.getuser()}@{process_name()}"
    except (OSError, KeyError):  # the user has no name
        return process_name()


async def note_deletion(store: MetadataStore, ledger_id: int, now_ms: int, how: str) -> None:
    """Note that this process is about to delete a ledger."""
    key = (*_KEY, str(ledger_id))
    value = json.dumps(asdict(Deletion(this_user(), now_ms, how))).encode()
    version: int | None = None
    try:
        version = (await store.read_value(key)).version  # of a ledger with the same id
    except NoSuchKeyError:
        pass
    try:
        await store.write_value(key, value, version)
    except (KeyExistsError, NoSuchKeyError, VersionConflictError):
        return  # another process deletes the ledger just now
    kept = [name for name in await store.list_values(_KEY) if name.isdecimal()]
    for name in sorted(kept, key=int)[:-KEPT_MAX]:
        await store.delete_value((*_KEY, name))


async def deletion_of(store: MetadataStore, ledger_id: int) -> Deletion | None:
    """Return who deleted a ledger, or None if no note that can be decoded says it."""
    try:
        stored = (await store.read_value((*_KEY, str(ledger_id)))).value
    except NoSuchKeyError:
        return None
    try:
        found = stored_json(stored)
        by, at_ms, how = found["by"], found["at_ms"], found["how"]
    except (ValueError, TypeError, KeyError):
        return None
    good = type(by) is str and type(how) is str and type(at_ms) is int and abs(at_ms) < 2**63
    return Deletion(by, at_ms, how) if good else None
