"""Sources of bookies' locations: a table file, and a script. The simulator uses neither.

A thread reads the file or runs the script, so that the event loop continues meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from quire._runtime.units import counted
from quire.client.cluster.locations import TableLocations
from quire.config import PlacementConfig
from quire.core.placement.tables import parse_lines, parse_toml
from quire.core.placement.values import parse_location
from quire.errors import UsageError
from quire.metadata.interface import BookieAddress

MAX_TABLE_BYTES = 4 * 1024 * 1024
"""The largest size of a table file, in bytes."""
MAX_ANSWER_BYTES = 64 * 1024
"""The largest output of one call of the script, in bytes."""
COMPLAINT_CHARACTERS = 200
"""The largest number of characters of the script's standard error that an error message quotes."""

Stamp = tuple[int, int, int]
"""The modification time, size and inode of a file, which change when the file is replaced."""


class FileLocations(TableLocations):
    """A source of locations that reads them from a table file, again whenever the file changes.

    If the file cannot be read or parsed, or is empty, the known locations stay.
    """

    def __init__(self, path: str, config: PlacementConfig) -> None:
        super().__init__()
        self.refresh_s = config.table_check_s
        self._path = path
        self._stamp: Stamp | None = None

    async def learn(self, bookies: Collection[BookieAddress]) -> None:
        try:
            found = await asyncio.to_thread(self._read)
        except (OSError, UsageError, UnicodeDecodeError) as error:
            self.failed(f"the table of locations {self._path} cannot be used: {error}")
            return
        self.trouble = ""
        if found is not None:
            self._stamp, self._table = found

    def _read(self) -> tuple[Stamp, dict[str, str]] | None:
        """Return the stamp of the file and its locations, or None if the file has not changed."""
        about = os.stat(self._path)
        stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
        if stamp == self._stamp:
            return None
        if about.st_size > MAX_TABLE_BYTES:
            raise UsageError(
                f"the file has {about.st_size} bytes, but at most {MAX_TABLE_BYTES} are read",
                remedy="Remove the lines of bookies that no longer exist, or use a script "
                "(`script:FILE`)",
            )
        text = Path(self._path).read_text(encoding="utf-8")
        table = (parse_toml if self._path.endswith(".toml") else parse_lines)(text)
        if not table:
            raise UsageError("the file has no locations")  # perhaps it is being written just now
        return stamp, table


class ScriptLocations(TableLocations):
    """A source of locations that calls a program with up to `script_names_max` hosts.

    The program prints one location per line, in the order of the hosts, as with Apache's
    `networkTopologyScriptFileName`. It runs without a shell.
    """

    def __init__(self, path: str, config: PlacementConfig) -> None:
        super().__init__()
        self.refresh_s = config.script_refresh_s
        self._path = path
        self._names_max = max(1, config.script_names_max)
        self._timeout_s = config.script_timeout_s

    async def learn(self, bookies: Collection[BookieAddress]) -> None:
        """Ask the script for the locations of the hosts of all given bookies.

        Known hosts are included, because only the script knows which have moved. Hosts without a
        known location come first.
        """
        hosts = sorted({bookie.host for bookie in bookies})
        hosts.sort(key=lambda host: host in self._table)
        for at in range(0, len(hosts), self._names_max):
            names = hosts[at : at + self._names_max]
            try:
                found = await asyncio.to_thread(self._ask, names)
            except (OSError, UsageError, subprocess.SubprocessError) as error:
                if not isinstance(error, UsageError):
                    error = UsageError(
                        f"the location script {self._path} cannot be run: {error}",
                        remedy="Check its path and permissions",
                    )
                self.failed(str(error))
                return
            self._table.update(zip(names, found))
            self.trouble = ""

    def _ask(self, names: Sequence[str]) -> list[str]:
        with subprocess.Popen(
            [self._path, *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=self._timeout_s)
            except BaseException as error:
                # Kill its children as well, because they may hold the pipes open.
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise UsageError(
                        f"the location script {self._path} did not answer within "
                        f"{self._timeout_s:g} s",
                        remedy="Raise script_timeout_s, or make the script faster",
                    ) from None
                raise
        if process.returncode:
            said = " ".join(err.decode("utf-8", "replace").split())[:COMPLAINT_CHARACTERS]
            raise UsageError(
                f"the location script {self._path} ended with exit status "
                f"{process.returncode}{f': {said}' if said else ', without an error message'}",
                remedy="Run it by hand with the host names of the bookies to find the mistake",
            )
        if len(out) > MAX_ANSWER_BYTES:
            raise UsageError(
                f"the location script {self._path} printed {len(out)} bytes, but at most "
                f"{MAX_ANSWER_BYTES} are read",
                remedy="Let the script print one location per line and nothing else",
            )
        lines = [line for line in out.decode("utf-8", "replace").splitlines() if line.strip()]
        if len(lines) != len(names):
            raise UsageError(
                f"the location script {self._path} printed {counted(len(lines), 'location')}, but "
                f"was asked for {counted(len(names), 'name')}",
                remedy="Let the script print one location per line, in the order of its arguments",
            )
        try:
            return [parse_location(line) for line in lines]
        except UsageError as error:
            raise UsageError(
                f"the location script {self._path} printed a line that cannot be used: {error}"
            ) from None
