"""The offloaded history of a stream: a manifest beside the files, and the claim to write it.

    DIRECTORY/STREAM/
      manifest/00000003-1f0c9a2be4d7.claim            the third job that wrote here
      manifest/00000003-1f0c9a2be4d7-00000002.json    its second manifest
      data/0000000012-0000000000-00000003-...parquet
      data/date=2026-11-01/0000000013-...parquet      if the archive is partitioned by date

A manifest names all files of the history, and for a day those that were merged into others. Any
other file is left over from a failed job, and the next job removes it. The newest manifest is the
one with the greatest name. No name is ever used twice, so neither a rename nor a conditional put
has to be atomic.

Two jobs may run at once, if a driver was mistaken for dead. A job first writes its claim, and then
reads what exists. After each manifest it looks for a later claim. If there is one, the manifest may
not count, and the job ends before it truncates anything. If there is none, every later job sees the
manifest, and continues after it. Truncating the stream after a `commit` is therefore safe, whatever
other jobs do.

Later versions of Quire can read every version of this format.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from quire._runtime.units import counted
from quire.errors import (
    HistoryDamagedError,
    HistoryError,
    LaterHistoryError,
    UsageError,
    later_json,
)
from quire.spark.jobs.archive.store import ArchiveDirectory
from quire.streams import DLSN, Gap

VERSION = 1
_NAMES = (
    "cluster", "namespace", "stream", "life", "start", "behind", "sequence", "ledger", "commit",
    "gaps", "files", "merged",
)  # fmt: skip
MANIFESTS_KEPT = 3
"""The number of manifests to keep, because readers may be about to open an older one."""
READ_ATTEMPTS = 5
"""The largest number of attempts to read the newest manifest.

An attempt fails if the manifest is replaced meanwhile.
"""
DATA = "data"
MANIFESTS = "manifest"
_NAME = re.compile(r"(\d{8,})-([0-9a-f]{12})(?:\.claim|-(\d{8,})\.json)", re.ASCII)
_FILE = re.compile(r"\d+-\d+-(\d{8,})-([0-9a-f]{12})-[0-9a-f]{8}\.parquet", re.ASCII)
"""The form of a data file's name: its first segment and entry, and the claim that wrote it."""

DATE = "date"
"""The name of the partition column, and of the key in the names of directories."""
DELTA_LOG = "_delta_log"
"""The directory of a Delta table's log, beside that of the data."""
ICEBERG_MARK = "iceberg.table"
"""A file beside the manifests that exists once an Iceberg table names the files."""
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""The date in the name of a directory for records without a time, as Hive and Spark name it."""

Key = tuple[int, str, int]
"""The decoded name of a claim or a manifest: number and owner of the claim, number of the manifest.

The number of the manifest is 0 for the claim itself.
"""


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One Parquet file, as it was when it was verified after it was written."""

    name: str
    """The path of the file below the directory of the data."""
    size_bytes: int
    """The size of the file in bytes."""
    rows: int
    """The number of records."""
    first: DLSN
    """The position of the first record."""
    last: DLSN
    """The position of the last record."""
    sequences: tuple[int, int]
    """The sequence ids of the first and of the last record."""
    txids: tuple[int, int]
    """The least and the greatest txid."""
    times_us: tuple[int, int] | None
    """The least and the greatest time in microseconds since 1970, or None if all times are unknown.
    """
    digests: Mapping[str, str] = field(default_factory=dict)
    """The digest of each column, by name (`parquet_files`)."""
    crc: int = 0
    """The CRC-32C of the whole file, because Spark reads more of it than the columns."""
    commit: int = 0
    """The number of the first manifest that names the file."""
    keyed: bool = False
    """Whether the file has columns for keys, headers and event times."""
    date: str | None = None
    """The date in UTC of all records of the file, or None if the file is in no directory of a date.

    It is `NO_DATE` if the records have no time.
    """

    def as_json(self) -> dict[str, Any]:
        """Return the file as JSON values, as a manifest stores it."""
        return {
            "name": self.name,
            "bytes": self.size_bytes,
            "rows": self.rows,
            "first": str(self.first),
            "last": str(self.last),
            "sequences": list(self.sequences),
            "txids": list(self.txids),
            "times_us": None if self.times_us is None else list(self.times_us),
            "digests": dict(self.digests),
            "crc": f"{self.crc:08x}",
            "commit": self.commit,
            # Versions that do not know these columns must not read the file without them.
            **({"keyed": True} if self.keyed else {}),
            # Versions that do not list these directories would report the file as missing.
            **({"date": self.date} if self.date is not None else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HistoryFile:
        """Return the file that a manifest describes.

        Raises KeyError, TypeError or ValueError if the description cannot be decoded.
        """
        times = value["times_us"]
        return cls(
            name=str(value["name"]),
            size_bytes=int(value["bytes"]),
            rows=int(value["rows"]),
            first=DLSN.parse(value["first"]),
            last=DLSN.parse(value["last"]),
            sequences=_pair(value["sequences"]),
            txids=_pair(value["txids"]),
            times_us=None if times is None else _pair(times),
            digests={str(name): str(text) for name, text in value["digests"].items()},
            crc=int(value["crc"], 16),
            commit=int(value["commit"]),
            keyed=bool(value.get("keyed", False)),
            date=None if value.get("date") is None else str(value["date"]),
        )


_FILE_NAMES = (
    "name", "bytes", "rows", "first", "last", "sequences", "txids", "times_us", "digests", "crc",
    "commit", "keyed", "date",
)  # fmt: skip


def _pair(value: Any) -> tuple[int, int]:
    first, last = value
    return int(first), int(last)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The complete history at one moment. Its files are in the order of the stream."""

    cluster: str
    """The instance id of the cluster."""
    namespace: str
    """The namespace of the stream."""
    stream: str
    """The name of the stream."""
    life: str
    """The path of the node that identifies the stream among all that ever had its name."""
    start: DLSN
    """The position at which the history begins.

    Records before it were truncated before the first job.
    """
    behind: DLSN
    """The position before which everything is in the files, or in `gaps`. It begins a segment."""
    sequence: int | None = None
    """The number of records of the stream before `behind`, or None if it is unknown."""
    ledger_id: int = -1
    """The ledger that held the segment before `behind`, or -1 if nothing was offloaded."""
    commit: int = 0
    """A number that grows by one with each manifest that adds something."""
    files: tuple[HistoryFile, ...] = ()
    """The files of the history."""
    gaps: tuple[Gap, ...] = ()
    """The records that were lost before they could be offloaded."""
    merged: tuple[tuple[str, int], ...] = ()
    """Each file that was merged into another one, with the time in milliseconds since 1970.

    The files are kept for a while, because readers may have planned to read them.
    """

    @property
    def records(self) -> int:
        """The number of records in all files."""
        return sum(file.rows for file in self.files)

    def kept_names(self) -> set[str]:
        """Return the names of all data files that must stay, including those that were merged."""
        return {file.name for file in self.files} | {name for name, _ in self.merged}

    @property
    def by_date(self) -> bool:
        """Whether the newest file is in the directory of a date. Later files will be, too."""
        return bool(self.files) and self.files[-1].date is not None

    @property
    def size_bytes(self) -> int:
        """The size of all files in bytes."""
        return sum(file.size_bytes for file in self.files)

    def check(self, cluster: str, namespace: str, stream: str, life: str, where: str) -> None:
        """Raise UsageError if this history, in the directory `where`, is that of something else."""
        for what, mine, yours in (
            ("cluster", self.cluster, cluster),
            ("namespace", self.namespace, namespace),
            ("stream", self.stream, stream),
        ):
            if mine != yours:
                raise UsageError(
                    f"the directory {where} holds the offloaded history of {what} {mine}, not of "
                    f"{what} {yours}. Nothing was changed",
                    remedy="Use another directory for this stream",
                )
        if self.life != life:
            raise UsageError(
                f"the directory {where} holds the offloaded history of a former stream {stream}, "
                "which was deleted or renamed; another stream has its name now. Nothing was "
                "changed",
                remedy="Use another directory for the present stream",
            )

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        value = {
            "v": VERSION,
            "cluster": self.cluster,
            "namespace": self.namespace,
            "stream": self.stream,
            "life": self.life,
            "start": str(self.start),
            "behind": str(self.behind),
            "sequence": self.sequence,
            "ledger": self.ledger_id,
            "commit": self.commit,
            "gaps": [[gap.kind, str(gap.first), str(gap.behind)] for gap in self.gaps],
            "files": [file.as_json() for file in self.files],
            # Versions that do not know this field refuse the manifest. They would otherwise remove
            # these files while readers still need them.
            **({"merged": [list(one) for one in self.merged]} if self.merged else {}),
        }
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """Decode the stored form.

        Raises LaterHistoryError if a later version of Quire wrote it, and HistoryDamagedError.
        """
        try:
            value = json.loads(data)
            if message := later_json(where, value, _NAMES, VERSION, key="v"):
                raise LaterHistoryError(message)
            if value["v"] != VERSION:
                raise ValueError(f"it has version {value['v']!r}")
            for one in value["files"]:
                if message := later_json(where, one, _FILE_NAMES):
                    raise LaterHistoryError(message)
            return cls(
                cluster=str(value["cluster"]),
                namespace=str(value["namespace"]),
                stream=str(value["stream"]),
                life=str(value["life"]),
                start=DLSN.parse(value["start"]),
                behind=DLSN.parse(value["behind"]),
                sequence=None if value["sequence"] is None else int(value["sequence"]),
                ledger_id=int(value["ledger"]),
                commit=int(value["commit"]),
                gaps=tuple(
                    Gap(str(kind), DLSN.parse(first), DLSN.parse(behind))
                    for kind, first, behind in value["gaps"]
                ),
                files=tuple(map(HistoryFile.from_json, value["files"])),
                merged=tuple((str(name), int(ms)) for name, ms in value.get("merged", ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HistoryDamagedError(
                f"the file {where}, which lists the offloaded history of a stream, is damaged: "
                f"{error!r}",
                remedy="Restore the file from a backup",
            ) from error


def directory_name(stream: str) -> str:
    """Return the name of a stream's directory.

    It is encoded like a part of a URI, but with ~ for %, because some libraries decode % once too
    often.
    """
    return quote(stream, safe="").replace("~", "%7E").replace("%", "~")


class OffloadHistory:
    """The history of one stream in a directory."""

    def __init__(self, directory: ArchiveDirectory | str, stream: str) -> None:
        above = (
            directory if isinstance(directory, ArchiveDirectory) else ArchiveDirectory(directory)
        )
        self.stream = stream
        self.directory = above.uri
        self.store = above.below(directory_name(stream))

    def newest(self) -> Manifest | None:
        """Return the newest manifest, or None if nothing was offloaded yet.

        Raises HistoryError and HistoryDamagedError.
        """
        for _ in range(READ_ATTEMPTS):
            keys = [key for key in self._keys() if key[2]]
            if not keys:
                self.store.require_bucket()
                return None
            name = f"{MANIFESTS}/{_name(keys[-1])}"
            data = self.store.read(name)
            if data is not None:
                return Manifest.from_bytes(data, self.store.location(name))
        raise HistoryError(
            f"the newest manifest in {self.store.location()} could not be read: other jobs "
            f"replaced it during each of {READ_ATTEMPTS} attempts",
            remedy="Try again",
        )

    def location(self, name: str) -> str:
        """Return the URI of a data file, as messages show it."""
        return self.store.location(f"{DATA}/{name}")

    def table_kind(self) -> str | None:
        """Return "delta" or "iceberg" if such a table names the files, or None."""
        if self.store.files(DELTA_LOG):
            return "delta"
        return "iceberg" if self.store.size(f"{MANIFESTS}/{ICEBERG_MARK}") is not None else None

    def mark_iceberg(self, table: str) -> None:
        """Record durably that an Iceberg table names the files, or is about to."""
        name = f"{MANIFESTS}/{ICEBERG_MARK}"
        if self.store.size(name) is None:
            self.store.write(name, table.encode())

    def claim(self) -> OffloadClaim:
        """Become the only writer of the history. The former writer ends with its next manifest.

        Raises HistoryError if the directory cannot be used, and HistoryDamagedError.
        """
        self.store.make(MANIFESTS)
        self.store.make(DATA)
        keys = self._keys()
        key = (keys[-1][0] + 1 if keys else 1, uuid.uuid4().hex[:12], 0)
        self.store.write(f"{MANIFESTS}/{_name(key)}", b"")
        return OffloadClaim(self, key, self.newest())

    def check_files(self, manifest: Manifest) -> None:
        """Raise HistoryDamagedError if a file is missing or differs in size from the manifest."""
        found = self.store.files(DATA, recursive=True)
        for file in manifest.files:
            size_bytes = found.get(file.name)
            if size_bytes == file.size_bytes:
                continue
            state = "is missing" if size_bytes is None else f"has {counted(size_bytes, 'byte')}"
            raise HistoryDamagedError(
                f"records {file.first} to {file.last} of the offloaded history of stream "
                f"{self.stream} are lost: file {self.location(file.name)} should have "
                f"{counted(file.size_bytes, 'byte')}, and it {state}",
                remedy="Restore the file from a backup",
            )

    def _keys(self) -> list[Key]:
        return sorted(
            (int(match[1]), match[2], int(match[3] or 0))
            for match in map(_NAME.fullmatch, self.store.files(MANIFESTS))
            if match is not None
        )


class OffloadClaim:
    """The right to write the next manifest of a history, which lasts until a later claim."""

    def __init__(self, history: OffloadHistory, key: Key, manifest: Manifest | None) -> None:
        self.history = history
        self.manifest = manifest
        """The newest manifest of the history, or None if there is none."""
        self._key = key

    @property
    def label(self) -> str:
        """The text that identifies this claim in the names of its files."""
        return f"{self._key[0]:08d}-{self._key[1]}"

    def commit(self, manifest: Manifest) -> None:
        """Make this manifest the newest, durably. Later jobs continue after it.

        Raises HistoryError if another job has claimed the directory, or if the store fails. The
        manifest may or may not count then.
        """
        self._key = (self._key[0], self._key[1], self._key[2] + 1)
        name = f"{MANIFESTS}/{_name(self._key)}"
        self.history.store.write(name, manifest.to_bytes())
        self.check()
        self.manifest = manifest

    def check(self) -> None:
        """Raise HistoryError if another job has claimed the directory."""
        if self.history._keys()[-1][:2] > self._key[:2]:
            raise HistoryError(
                f"another job has begun to offload stream {self.history.stream} to "
                f"{self.history.store.location()}, so this job ends. The files that it "
                "has committed so far stay valid",
                remedy="Let only one job at a time offload the stream to this directory",
            )

    def settle(self, manifest: Manifest) -> None:
        """Commit the newest manifest again, and remove the files of former jobs that it lacks.

        `manifest` is the newest one, or an empty one if there is none. No manifest of a former
        claim can then become the newest any more. Raises the errors of `commit`.
        """
        self.commit(manifest)
        self.sweep()

    def sweep(self) -> int:
        """Remove data files that the newest manifest does not name, old manifests and old claims.

        Call this only while no task of this claim writes. Files of later claims are left alone.
        Returns the number of removed data files.
        """
        store = self.history.store
        counted = self.manifest.kept_names() if self.manifest else set()
        left = [
            name
            for name, match in (
                (name, _FILE.fullmatch(name.rpartition("/")[2]))
                for name in store.files(DATA, recursive=True)
            )
            if match is not None
            and name not in counted
            and (int(match[1]), match[2]) <= self._key[:2]
        ]
        for name in left:
            store.remove(f"{DATA}/{name}")
        manifests = [key for key in self.history._keys() if key[2] and key[:2] <= self._key[:2]]
        claims = [key for key in self.history._keys() if not key[2] and key[:2] < self._key[:2]]
        for key in (*manifests[:-MANIFESTS_KEPT], *claims):
            store.remove(f"{MANIFESTS}/{_name(key)}")
        return len(left)


def _name(key: Key) -> str:
    epoch, owner, number = key
    return f"{epoch:08d}-{owner}" + (f"-{number:08d}.json" if number else ".claim")


def with_files(
    manifest: Manifest, files: list[HistoryFile], gaps: list[Gap], behind: DLSN,
    sequence: int | None, ledger_id: int,
) -> Manifest:  # fmt: skip
    """Return the manifest that follows `manifest`, with more files and gaps.

    `behind`, `sequence` and `ledger_id` are fields of the new manifest.
    """
    commit = manifest.commit + 1
    return replace(
        manifest,
        files=(*manifest.files, *[replace(file, commit=commit) for file in files]),
        gaps=(*manifest.gaps, *gaps),
        behind=behind,
        sequence=sequence,
        ledger_id=ledger_id,
        commit=commit,
    )
