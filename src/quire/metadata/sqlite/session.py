"""Sessions, and the bookies and nodes that hang on them, in the SQLite file. All of this runs on
the file's thread, inside the caller's transaction: whether a lease holds is decided under the lock
that also guards what is done about it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from quire.metadata.common import decode_address
from quire.metadata.interface import BookieAddress, Bookies
from quire.metadata.sqlite.lease import LeaseMachine, ProcessId

_SESSION_ID_END = 2**63


@dataclass(frozen=True, slots=True)
class WantedRegistration:
    """A bookie as this session wants it registered."""

    bookie_id: str
    payload: bytes
    readonly: bool


class Session:
    """This store's session: a lease, renewed by `touch`, and the bookies that hang on it."""

    def __init__(self, session_id: int, timeout_ms: int, machine: LeaseMachine) -> None:
        self._session_id = session_id
        self._begun = False
        self._timeout_ms = timeout_ms
        self._machine = machine
        self._boot_id: str | None = None

    @property
    def session_id(self) -> int:
        """Changes when the lease has run out before it was renewed. May be read on any thread."""
        return self._session_id

    def touch(self, connection: sqlite3.Connection) -> None:
        """Begin the session or renew its lease, and clear away the sessions that have ended. A
        lease that ran out is not renewed: others have seen that it did. A new session begins, which
        takes over the bookies that nobody has cleared away, but no nodes."""
        if self._begun and self._session_id not in self.living(connection):
            ended, self._session_id = self._session_id, (self._session_id + 1) % _SESSION_ID_END
            connection.execute(
                "UPDATE bookies SET session_id = ? WHERE session_id = ?", (self._session_id, ended)
            )
        self._begun = True
        process = self._machine.this_process()
        connection.execute(
            "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?)",
            (
                self._session_id,
                self._this_boot(),
                self._machine.now_ms() + self._timeout_ms,
                process.pid,
                process.namespace,
                process.start,
            ),
        )
        living = self.living(connection)
        sessions = connection.execute("SELECT session_id FROM sessions").fetchall()
        for (session_id,) in sessions:
            if session_id not in living:
                _delete(connection, session_id)

    def take(self, connection: sqlite3.Connection, presence: WantedRegistration) -> bool:
        """Register the bookie, or change how. False if another living session has the id."""
        self.touch(connection)
        row = connection.execute(
            "SELECT session_id FROM bookies WHERE bookie_id = ?", (presence.bookie_id,)
        ).fetchone()
        if row is not None and row[0] != self._session_id:
            return False
        connection.execute(
            "INSERT OR REPLACE INTO bookies VALUES (?, ?, ?, ?)",
            (presence.bookie_id, self._session_id, presence.readonly, presence.payload),
        )
        return True

    def renew(
        self, connection: sqlite3.Connection, presences: Iterable[WantedRegistration]
    ) -> list[str]:
        """Renew the lease and whatever was lost with an earlier one. Returns the ids that another
        session has taken meanwhile."""
        self.touch(connection)
        rows = connection.execute("SELECT bookie_id, session_id, readonly, payload FROM bookies")
        held = {row[0]: row[1:] for row in rows}
        taken = []
        for presence in presences:
            wanted = (self._session_id, presence.readonly, presence.payload)
            if held.get(presence.bookie_id) != wanted and not self.take(connection, presence):
                taken.append(presence.bookie_id)
        return taken

    def withdraw(self, connection: sqlite3.Connection, bookie_id: str) -> None:
        connection.execute(
            "DELETE FROM bookies WHERE bookie_id = ? AND session_id = ?",
            (bookie_id, self._session_id),
        )

    def end(self, connection: sqlite3.Connection) -> None:
        _delete(connection, self._session_id)

    def bookies(self, connection: sqlite3.Connection) -> Bookies:
        """The bookies of the living sessions."""
        living = self.living(connection)
        writable: dict[str, BookieAddress] = {}
        readonly: dict[str, BookieAddress] = {}
        for bookie_id, session_id, is_readonly, payload in connection.execute(
            "SELECT bookie_id, session_id, readonly, payload FROM bookies ORDER BY bookie_id"
        ):
            address = decode_address(bookie_id, payload) if session_id in living else None
            if address is not None:
                (readonly if is_readonly else writable)[bookie_id] = address
        return Bookies(writable, readonly)

    def living(self, connection: sqlite3.Connection) -> frozenset[int]:
        now_ms = self._machine.now_ms()
        boot_id = self._this_boot()
        return frozenset(
            session_id
            for session_id, session_boot_id, deadline_ms, pid, namespace, start in (
                connection.execute("SELECT * FROM sessions")
            )
            if session_boot_id == boot_id
            and deadline_ms > now_ms
            and self._machine.exists(ProcessId(pid, namespace, start))
        )

    def _this_boot(self) -> str:
        if self._boot_id is None:
            self._boot_id = self._machine.boot_id()
        return self._boot_id


def _delete(connection: sqlite3.Connection, session_id: int) -> None:
    connection.execute("DELETE FROM bookies WHERE session_id = ?", (session_id,))
    connection.execute("DELETE FROM tree WHERE owner = ?", (session_id,))
    connection.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
