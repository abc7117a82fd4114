"""A directory that holds one table, version after version.

    DIRECTORY/
      manifest/00000003-1f0c9a2be4d7.claim     the third job that wrote here
      manifest/00000003-1f0c9a2be4d7-1.json    a copy of the manifest that it found
      manifest/00000003-1f0c9a2be4d7-2.json    the manifest of its own version
      data/00000003-1f0c9a2be4d7/*.parquet     the table

The current version is the manifest with the greatest name. It names a directory of files, and holds
the state of the job that wrote it. Both therefore always belong together. No name is ever used
twice, so neither a rename nor a conditional put has to be atomic.

Two jobs may run at once. A job first writes its claim, and then writes the manifest that it found
again under its own claim. A later claim therefore outranks everything that a former job may still
write. The former job finds the later claim after its last step, and reports that its version does
not count.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from quire.errors import HistoryDamagedError, HistoryError, LaterHistoryError, later_json
from quire.spark.jobs.archive.store import ArchiveDirectory

FORMAT = 1
KEPT = 2
"""The number of versions whose files are kept: the newest one and the one before it.

Readers may have opened the one before the newest.
"""
READ_ATTEMPTS = 5
"""The largest number of attempts to read the newest manifest.

An attempt fails if the manifest is replaced meanwhile.
"""
MANIFESTS, DATA = "manifest", "data"
_NAME = re.compile(r"(\d{8})-([0-9a-f]{12})(?:\.claim|-(\d)\.json)", re.ASCII)
_DIRECTORY = re.compile(r"(\d{8})-([0-9a-f]{12})", re.ASCII)
"""The form of the name of a version's directory: the claim under which it was written."""

logger = logging.getLogger("quire.spark")

Name = tuple[int, str, int]
"""The decoded name of a claim or a manifest: number and owner of the claim, number of the manifest.

The number of the manifest is 0 for the claim itself.
"""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a table, as its manifest describes it."""

    name: str | None
    """The name of the directory with the version's files, or None before the first version."""
    state: dict[str, Any] = field(default_factory=dict)
    """The state of the job that wrote the version, as JSON values."""
    former: tuple[str, ...] = ()
    """The directories of earlier versions whose files are kept."""

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        values = {"v": FORMAT, "data": self.name, "former": self.former, "state": self.state}
        return json.dumps(values, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Version:
        """Decode the stored form.

        Raises LaterHistoryError if a later version of Quire wrote it, and HistoryDamagedError.
        """
        try:
            values = json.loads(data)
            if message := later_json(where, values, ("data", "former", "state"), FORMAT, key="v"):
                raise LaterHistoryError(message)
            if values["v"] != FORMAT:
                raise ValueError(f"it has format {values['v']!r}")
            return cls(values["data"], values["state"], tuple(values["former"]))
        except (KeyError, TypeError, ValueError) as error:
            raise HistoryDamagedError(
                f"the file {where}, which describes a version of a compacted table, cannot be "
                f"decoded: {error!r}",
                remedy="If a later version of Quire wrote it, use that version. Otherwise "
                "restore the file from a backup, or compact the whole stream again "
                "(--full, or in Python full=True)",
            ) from None


class Versions:
    """The versions of the table in one directory, of which the newest is the current one."""

    def __init__(self, directory: str) -> None:
        self.store = ArchiveDirectory(directory)

    def newest(self) -> Version | None:
        """Return the newest version, or None if nothing was ever written.

        Raises HistoryError and HistoryDamagedError.
        """
        for _ in range(READ_ATTEMPTS):
            names = self.names_of_manifests()
            if not names:
                return None
            file = f"{MANIFESTS}/{_text(names[-1])}"
            data = self.store.read(file)
            if data is not None:
                return Version.from_bytes(data, self.store.location(file))
        raise HistoryError(
            f"the newest version in {self.store.location()} could not be read: other jobs "
            f"replaced it during each of {READ_ATTEMPTS} attempts",
            remedy="Try again",
        )

    def spark_path(self, version: Version) -> str:
        """Return the path of a version's files for Spark."""
        return self.store.spark_path(f"{DATA}/{version.name}")

    def claim(self) -> VersionClaim:
        """Become the only writer of the table.

        The version of a former writer that has not ended yet does not count any more. Raises
        HistoryError if the store fails or another job claims the table at the same time.
        """
        self.store.make(MANIFESTS)
        self.store.make(DATA)
        names = self.names()
        number = names[-1][0] + 1 if names else 1
        owner = uuid.uuid4().hex[:12]
        self.store.write(f"{MANIFESTS}/{_text((number, owner, 0))}", b"")
        return VersionClaim(self, number, owner)

    def names_of_manifests(self) -> list[Name]:
        """Return the decoded names of all manifests, in ascending order."""
        return [name for name in self.names() if name[2]]

    def names(self) -> list[Name]:
        """Return the decoded names of all claims and manifests, in ascending order."""
        return sorted(
            (int(match[1]), match[2], int(match[3] or 0))
            for match in map(_NAME.fullmatch, self.store.files(MANIFESTS))
            if match is not None
        )


class VersionClaim:
    """The right to add the next version of a table, which lasts until a later claim."""

    def __init__(self, versions: Versions, number: int, owner: str) -> None:
        self._versions = versions
        self._store = versions.store
        self._number, self._owner = number, owner
        self._directory = f"{number:08d}-{owner}"
        found = versions.newest()
        self.former = found
        """The version that existed before, or None."""
        self._found = found or Version(None)
        self._write(1, self._found)
        self._check()
        self._sweep(self._found)

    @property
    def output(self) -> str:
        """The path to which Spark writes the files of the new version."""
        return self._store.spark_path(f"{DATA}/{self._directory}", pattern=False)

    @property
    def input(self) -> str:
        """The path from which Spark reads the files of the new version."""
        return self._store.spark_path(f"{DATA}/{self._directory}")

    def commit(self, state: dict[str, Any]) -> Version:
        """Make the files that Spark wrote to `output` the newest version, durably.

        The version keeps `state`, which `newest` returns with it.

        Raises HistoryError if another job has claimed the directory, unless that job continues
        after this version. The error says whether this version counts. Raises HistoryError also if
        the store fails, and then this version may or may not count. After a commit, files that are
        no longer needed are removed. An error of that is only logged.
        """
        directory = f"{DATA}/{self._directory}"
        self._check()
        if self._store.is_local:
            for name in self._store.files(directory):
                self._store.settle(f"{directory}/{name}")
            self._store.settle(directory)
        self._check()
        found = self._found
        former = (*found.former, found.name) if found.name is not None else ()
        made = Version(self._directory, state, former[-(KEPT - 1) :])
        self._write(2, made)
        if self._is_outranked() and not self._is_base_of_later():
            raise self._outranked("this job ends without a new version")
        try:
            self._sweep(made)
        except HistoryError as error:
            logger.warning(
                "version %s is complete, but the next job has to remove former ones: %s",
                self._directory, error,
            )  # fmt: skip
        return made

    def _write(self, number: int, version: Version) -> None:
        name = _text((self._number, self._owner, number))
        self._store.write(f"{MANIFESTS}/{name}", version.to_bytes())

    def _check(self) -> None:
        if self._is_outranked():
            raise self._outranked("this job ends without a new version")

    def _is_outranked(self) -> bool:
        """Return whether another job has claimed the directory."""
        return self._versions.names()[-1][:2] > (self._number, self._owner)

    def _is_base_of_later(self) -> bool:
        """Return whether the later job has found this version, and continues after it.

        Raises HistoryError if the later job has not yet said what it has found.
        """
        newest = self._versions.names_of_manifests()[-1]
        if newest[:2] == (self._number, self._owner):
            raise self._outranked(
                f"it is not known whether the new version {self._directory} counts, which it "
                "does if that job continues after it"
            )
        found = self._versions.newest()
        return found is not None and self._directory in (found.name, *found.former)

    def _outranked(self, outcome: str) -> HistoryError:
        return HistoryError(
            f"another job has begun to compact to {self._store.location()}, so {outcome}",
            remedy="Let only one job at a time compact to this directory",
        )

    def _sweep(self, version: Version) -> None:
        """Remove what is needed neither by this version nor by those that it keeps.

        Directories of later claims are left alone: this job may have been taken for dead, and the
        next one may be writing to them. Raises HistoryError if the directory of the table
        cannot be read or changed.
        """
        kept, mine = {version.name, *version.former}, (self._number, self._owner)
        for directory in self._store.directories(DATA):
            claim = _DIRECTORY.fullmatch(directory)
            if claim is not None and directory not in kept and (int(claim[1]), claim[2]) < mine:
                self._store.remove_directory(f"{DATA}/{directory}")
        for name in self._versions.names():
            if name[:2] < mine:
                self._store.remove(f"{MANIFESTS}/{_text(name)}")


def _text(name: Name) -> str:
    number, owner, manifest = name
    return f"{number:08d}-{owner}" + (f"-{manifest}.json" if manifest else ".claim")
