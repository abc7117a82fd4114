"""Sessions of processes in the SQLite file, with the bookies and nodes that belong to them.

A session is alive while all of these conditions hold:

- It began after the last start of the machine (it has the same boot id).
- Its lease has not expired. Leases use the boot clock, which all processes share and which
  continues while the machine sleeps.
- Its process exists, so that the session of a killed process ends at once and not with its lease. A
  process is identified by its id and start time, because ids are used again. Only processes in the
  same process namespace can be checked; others are taken to exist. The same applies if a process
  cannot be checked, for example because this one may not open any more files.

The calls of `Session` run on the file's thread, in the caller's transaction. The lock of the
transaction covers both the check of a lease and what is done about it.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quire.metadata.common import decode_address
from quire.metadata.interface import BookieAddress, Bookies

_NO_START = 0
"""The start time of a process if it is unknown, because there is no /proc. Only its lease counts
then."""
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SYSCTL_TIMEOUT_S = 5
_ZOMBIE_STATES = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process of this machine."""

    pid: int
    namespace: str
    start: int
    """The start time, in clock ticks since the start of the machine."""


class LeaseMachine(Protocol):
    """The properties of the machine that leases depend on. Tests replace them. Calls may block."""

    def boot_id(self) -> str:
        """Return an id that changes with each start of the machine.

        Raises OSError if it cannot be read now. A wrong id would end the sessions of all others.
        """
        ...

    def now_ms(self) -> int:
        """Return the milliseconds since the machine was started."""
        ...

    def this_process(self) -> ProcessId:
        """Return the present process."""
        ...

    def exists(self, process: ProcessId) -> bool:
        """Return False only if the process has certainly ended."""
        ...


class ThisMachine:
    """The machine that this process runs on."""

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return _boot_id_of_sysctl()

    def now_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def this_process(self) -> ProcessId:
        pid = os.getpid()
        try:
            start = _start_of(pid) or _NO_START
        except OSError:
            start = _NO_START
        return ProcessId(pid, _namespace(), start)

    def exists(self, process: ProcessId) -> bool:
        if process.start == _NO_START or process.namespace != _namespace():
            return True
        try:
            return _start_of(process.pid) == process.start
        except OSError:
            return True  # its lease decides


def _boot_id_of_sysctl() -> str:
    """Return the boot id of macOS, or "unknown" if the machine has none.

    Without it, a lease from before a restart could look alive until it expires. Raise OSError if
    the id cannot be read now.
    """
    try:
        run = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            capture_output=True,
            timeout=_SYSCTL_TIMEOUT_S,
            check=True,
        )
    except (FileNotFoundError, PermissionError, subprocess.CalledProcessError):
        return "unknown"
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"the boot id of the machine could not be read: {error}") from error
    return run.stdout.decode("ascii", "replace").strip()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """Return when the process was started, in clock ticks since the start of the machine.

    Return None if there is no such process, or if it has ended and only waits for its parent. Raise
    OSError if that is not known, for example because this process may not open any more files.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        try:
            os.kill(pid, 0)  # /proc may hide the processes of other users: PermissionError
        except ProcessLookupError:
            pass
        return None
    # The name is in parentheses and may contain anything, so fields are counted after it.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in _ZOMBIE_STATES:
        return None
    return int(fields[19])


# -- sessions ---------------------------------------------------------------------------------

_SESSION_ID_END = 2**63


@dataclass(frozen=True, slots=True)
class WantedRegistration:
    """A registration that this session wants to have."""

    bookie_id: str
    payload: bytes
    readonly: bool


class Session:
    """The session of one store: a lease, and the bookies that depend on it.

    `touch` renews the lease.
    """

    def __init__(self, session_id: int, timeout_ms: int, machine: LeaseMachine) -> None:
        self._session_id = session_id
        self._begun = False
        self._timeout_ms = timeout_ms
        self._machine = machine
        self._boot_id: str | None = None

    @property
    def session_id(self) -> int:
        """The id of the session. It changes if the lease expired before it was renewed.

        It may be read on any thread.
        """
        return self._session_id

    def touch(self, connection: sqlite3.Connection) -> None:
        """Begin the session or renew its lease, and delete the sessions that have ended.

        A lease that has expired is not renewed, because other processes may have seen that. A new
        session begins instead. It takes over the registrations of bookies that no other process has
        deleted yet, but no ephemeral nodes.
        """
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
        """Register the bookie, or change its registration.

        Return False if another living session has the id.
        """
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
        """Renew the lease, and register again the bookies that were lost with an earlier lease.

        Return the bookie ids that another session has taken in the meantime.
        """
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
        """Delete the registration of a bookie of this session."""
        connection.execute(
            "DELETE FROM bookies WHERE bookie_id = ? AND session_id = ?",
            (bookie_id, self._session_id),
        )

    def end(self, connection: sqlite3.Connection) -> None:
        """Delete the session, its bookies and its nodes."""
        _delete(connection, self._session_id)

    def bookies(self, connection: sqlite3.Connection) -> Bookies:
        """Return the bookies of the living sessions."""
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
        """Return the ids of the living sessions."""
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
