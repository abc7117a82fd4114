"""What has been offloaded of a stream: a manifest beside the files, and whose turn it is to write.

    DIRECTORY/STREAM/
      manifest/00000003-1f0c9a2be4d7.claim            the third job that wrote here
      manifest/00000003-1f0c9a2be4d7-00000002.json    its second manifest
      data/0000000012-0000000000-00000003-...parquet

A manifest names all files that count; any other file is left over and is removed by the next job.
The newest manifest is the one whose name is the greatest. Nothing is ever written under a name that
was used before, so that neither a rename nor a conditional put has to be atomic.

Two jobs at once (a driver that was taken for dead): a job first writes its claim, then reads what
is there. After each manifest it looks for a later claim. If there is one, the manifest may not
count, and the job ends before it truncates anything; if there is none, whoever claims later sees
the manifest, and goes on behind it. Hence truncating behind a manifest that was `commit`ted is safe
whatever others do.

A version that is written here stays readable for ever.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from quire.errors import HistoryDamagedError, HistoryError, UsageError
from quire.spark.jobs.archive.store import ArchiveDirectory
from quire.streams import DLSN, Gap

VERSION = 1
MANIFESTS_KEPT = 3
"""Readers may be about to open the one before the newest."""
READ_ATTEMPTS = 5
"""While manifests are replaced faster than they can be read."""
DATA = "data"
MANIFESTS = "manifest"
_NAME = re.compile(r"(\d{8,})-([0-9a-f]{12})(?:\.claim|-(\d{8,})\.json)", re.ASCII)
_FILE = re.compile(r"\d+-\d+-(\d{8,})-([0-9a-f]{12})-[0-9a-f]{8}\.parquet", re.ASCII)
"""Where it begins, and who wrote it."""

Key = tuple[int, str, int]
"""The number of a claim, who made it, and the number of a manifest of it (0: the claim)."""


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One Parquet file, as it was found when it was read back."""

    name: str
    size_bytes: int
    rows: int
    first: DLSN
    last: DLSN
    sequences: tuple[int, int]
    """Of the first and of the last record."""
    txids: tuple[int, int]
    """The least and the greatest."""
    times_us: tuple[int, int] | None
    """The same; None: no record knows its time."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of each column, by name (`parquet_files`)."""
    crc: int = 0
    """CRC-32C of the whole file: what Spark reads of it is not only the columns."""
    commit: int = 0
    """Since which manifest it counts."""

    def as_json(self) -> dict[str, Any]:
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
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HistoryFile:
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
        )


def _pair(value: Any) -> tuple[int, int]:
    first, last = value
    return int(first), int(last)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that counts. Files follow each other, in the order of the stream."""

    cluster: str
    """Its instance id."""
    namespace: str
    stream: str
    life: str
    """Tells the stream from another one that had, or gets, its name."""
    start: DLSN
    """Where the history begins: what lies before was truncated when the first job came."""
    behind: DLSN
    """Everything before this is in the files, or in `gaps`. The beginning of a segment."""
    sequence: int | None = None
    """How many records of the stream came before `behind`; None: its segments do not tell."""
    ledger_id: int = -1
    """That held the segment before `behind`."""
    commit: int = 0
    """Grows by one with each manifest that adds something."""
    files: tuple[HistoryFile, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def check(self, cluster: str, namespace: str, stream: str, life: str) -> None:
        """UsageError where it is the history of something else."""
        for what, mine, yours in (
            ("cluster", self.cluster, cluster),
            ("namespace", self.namespace, namespace),
            ("stream", self.stream, stream),
        ):
            if mine != yours:
                raise UsageError(
                    f"the directory holds the history of {what} {mine}, not {yours}",
                    remedy="Use another directory",
                )
        if self.life != life:
            raise UsageError(
                f"the directory holds the history of a stream {stream} that was deleted: another "
                "one has its name",
                remedy="Use another directory",
            )

    def to_bytes(self) -> bytes:
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
        }
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """HistoryDamagedError; UsageError for one of a later version."""
        try:
            value = json.loads(data)
            if value["v"] != VERSION:
                raise UsageError(
                    f"{where} is a manifest of version {value['v']}, known here is {VERSION}",
                    remedy="Use the version of quire that wrote it, or a later one",
                )
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
            )
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HistoryDamagedError(f"{where} is no manifest: {error!r}") from error


def directory_name(stream: str) -> str:
    """As in a URI, with ~ for %, which some libraries decode once too often."""
    return quote(stream, safe="").replace("~", "%7E").replace("%", "~")


class OffloadHistory:
    """What a directory holds of one stream."""

    def __init__(self, directory: ArchiveDirectory | str, stream: str) -> None:
        above = (
            directory if isinstance(directory, ArchiveDirectory) else ArchiveDirectory(directory)
        )
        self.stream = stream
        self.directory = above.uri
        self.store = above.below(directory_name(stream))

    def newest(self) -> Manifest | None:
        """None: nothing was offloaded yet. HistoryError, HistoryDamagedError."""
        for _ in range(READ_ATTEMPTS):
            keys = [key for key in self._keys() if key[2]]
            if not keys:
                return None
            name = f"{MANIFESTS}/{_name(keys[-1])}"
            data = self.store.read(name)
            if data is not None:
                return Manifest.from_bytes(data, f"{self.store.uri}/{name}")
        raise HistoryError(f"the manifests in {self.store.uri} are replaced all the time")

    def claim(self) -> OffloadClaim:
        """Become the one that writes here: who was it before ends with its next manifest."""
        self.store.make(MANIFESTS)
        self.store.make(DATA)
        keys = self._keys()
        key = (keys[-1][0] + 1 if keys else 1, uuid.uuid4().hex[:12], 0)
        self.store.write(f"{MANIFESTS}/{_name(key)}", b"")
        return OffloadClaim(self, key, self.newest())

    def check_files(self, manifest: Manifest) -> None:
        """HistoryDamagedError where a file is missing, or has another size than it had."""
        found = self.store.files(DATA)
        for file in manifest.files:
            size_bytes = found.get(file.name)
            if size_bytes == file.size_bytes:
                continue
            state = "is missing" if size_bytes is None else f"has {size_bytes} bytes"
            raise HistoryDamagedError(
                f"stream {self.stream}: records {file.first} to {file.last} are lost: file "
                f"{self.store.uri}/{DATA}/{file.name} ({file.size_bytes} bytes) {state}",
                remedy="Restore it from a backup",
            )

    def _keys(self) -> list[Key]:
        return sorted(
            (int(match[1]), match[2], int(match[3] or 0))
            for match in map(_NAME.fullmatch, self.store.files(MANIFESTS))
            if match is not None
        )


class OffloadClaim:
    """The right to write the next manifest, until a later claim."""

    def __init__(self, history: OffloadHistory, key: Key, manifest: Manifest | None) -> None:
        self.history = history
        self.manifest = manifest
        """The newest. None: there is none."""
        self._key = key

    @property
    def label(self) -> str:
        """In the names of the files that are written under this claim."""
        return f"{self._key[0]:08d}-{self._key[1]}"

    def commit(self, manifest: Manifest) -> None:
        """It counts, durably, and everyone who comes later goes on behind it. HistoryError:
        another job has claimed the directory; it may count or not."""
        self._key = (self._key[0], self._key[1], self._key[2] + 1)
        name = f"{MANIFESTS}/{_name(self._key)}"
        self.history.store.write(name, manifest.to_bytes())
        self.check()
        self.manifest = manifest

    def check(self) -> None:
        """HistoryError: another job has claimed the directory."""
        if self.history._keys()[-1][:2] > self._key[:2]:
            raise HistoryError(
                f"another job has begun to offload stream {self.history.stream} to "
                f"{self.history.store.uri}; this one ends",
                remedy="Run one at a time",
            )

    def settle(self, manifest: Manifest) -> None:
        """Commit what the newest says (where there is none: that there is nothing), so that no
        manifest of a former claim can become the newest any more; then remove what is left of
        former jobs."""
        self.commit(manifest)
        self.sweep()

    def sweep(self) -> int:
        """Remove files that do not count, and old manifests; how many data files. Only while no
        task of this claim writes. What was written under later claims is left alone."""
        store = self.history.store
        counted = {file.name for file in self.manifest.files} if self.manifest else set()
        left = [
            name
            for name, match in ((name, _FILE.fullmatch(name)) for name in store.files(DATA))
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
    """The next one."""
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
