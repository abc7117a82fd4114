"""A directory for offloaded history: on this machine, or in an object store.

What pyarrow knows (`/path`, `file://`, `s3://`, `gs://`, `hdfs://` ...) is reached through it, any
other URI through fsspec, if that is installed. Nothing here needs an atomic rename or a conditional
put: names are never used twice. It needs that what was written shows in a list that is asked for
afterwards, which all of these stores promise.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import crc32c

from quire.client.read.arrow import import_pyarrow
from quire.errors import HistoryError, QuireError, UsageError

GLOB = re.compile(r"([*?\[\]{}\\])")
HADOOP_SCHEMES = {"s3": "s3a"}
"""What Spark calls a store that pyarrow has under another name."""
CHUNK_BYTES = 8 * 1024 * 1024
"""That are read at once."""
PARTIAL = ".partial-"
"""Of files of this machine that were not renamed yet: nobody reads them."""


class ArchiveDirectory:
    """Paths are relative to the directory, with slashes. HistoryError where the store fails."""

    def __init__(self, uri: str, filesystem: Any = None) -> None:
        """`filesystem`: of pyarrow, for those that no URI names; then `uri` is the path in it."""
        import_pyarrow()
        from pyarrow import fs

        if filesystem is None:
            filesystem, path = _open(uri)
        else:
            path = uri
        self.filesystem = filesystem
        self.is_local = isinstance(filesystem, fs.LocalFileSystem)
        self._path = path.rstrip("/")
        self.uri = self._path if self.is_local else uri.rstrip("/")

    def below(self, name: str) -> ArchiveDirectory:
        """A directory in this one. The name stands for itself: nothing in it is decoded."""
        found = ArchiveDirectory(self.path(name), self.filesystem)
        base, question, query = self.uri.partition("?")
        found.uri = f"{base}/{name}{question}{query}"
        return found

    def path(self, name: str) -> str:
        """As `filesystem` calls it."""
        return f"{self._path}/{name}" if name else self._path

    def spark_path(self, name: str) -> str:
        """As Spark calls it; what Spark takes for patterns is escaped."""
        if self.is_local:
            return "file://" + GLOB.sub(r"\\\1", self.path(name))
        scheme, colon, rest = self.uri.partition(":")
        rest = rest.partition("?")[0]
        return GLOB.sub(r"\\\1", f"{HADOOP_SCHEMES.get(scheme, scheme)}{colon}{rest}/{name}")

    def files(self, directory: str) -> dict[str, int]:
        """The files of a directory, and their sizes; nothing, if there is none."""
        from pyarrow import fs

        with _told(self, directory):
            selector = fs.FileSelector(self.path(directory), allow_not_found=True)
            found = self.filesystem.get_file_info(selector)
        return {
            info.base_name: info.size
            for info in sorted(found, key=lambda info: str(info.base_name))
            if info.type == fs.FileType.File and not info.base_name.startswith(PARTIAL)
        }

    def size(self, name: str) -> int | None:
        """None: there is no such file."""
        from pyarrow import fs

        with _told(self, name):
            [info] = self.filesystem.get_file_info([self.path(name)])
        return int(info.size) if info.type == fs.FileType.File else None

    def make(self, directory: str) -> None:
        """Durable on return, with those above it."""
        with _told(self, directory):
            if self.is_local:
                _make_durably(self.path(directory))
            else:
                self.filesystem.create_dir(self.path(directory), recursive=True)

    def read(self, name: str) -> bytes | None:
        """None: there is no such file."""
        with _told(self, name):
            try:
                with self.filesystem.open_input_stream(self.path(name)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def crc(self, name: str) -> int:
        """CRC-32C of a file."""
        found = 0
        with _told(self, name), self.filesystem.open_input_stream(self.path(name)) as stream:
            while data := stream.read(CHUNK_BYTES):
                found = crc32c.crc32c(data, found)
        return found

    def write(self, name: str, data: bytes) -> None:
        """A file of a name that was never used; whole and durable on return, or not there."""
        with _told(self, name):
            if not self.is_local:
                with self.filesystem.open_output_stream(self.path(name)) as stream:
                    stream.write(data)
                return
            directory, _, base = self.path(name).rpartition("/")
            partial = f"{directory}/{PARTIAL}{uuid.uuid4().hex}-{base}"
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(partial, self.path(name))
            _sync(directory)

    def settle(self, name: str) -> None:
        """A file that was written and closed is durable on return, and what is read of it
        afterwards comes from the disk again, as far as the system lets us say so."""
        if not self.is_local:
            return  # closing it was enough
        with _told(self, name):
            descriptor = os.open(self.path(name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
            _sync(os.path.dirname(self.path(name)))

    def remove(self, name: str) -> None:
        """One that is missing is success."""
        with _told(self, name):
            try:
                self.filesystem.delete_file(self.path(name))
            except FileNotFoundError:
                pass


def _open(uri: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    if "://" not in uri:
        if not uri:
            raise UsageError("the directory of the history has no name")
        return fs.LocalFileSystem(), os.path.abspath(uri)
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(uri)
        return found
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        known = str(error)
    except OSError as error:
        raise HistoryError(f"{uri} cannot be reached: {error}") from error
    try:
        filesystem, path = import_module("fsspec.core").url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"{uri} is no directory that can be reached: {known}; fsspec: {error}",
            remedy="Use /path, file://, s3://, gs:// or hdfs://, or install fsspec and what it "
            "needs for this kind of URI",
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), str(path)


@contextmanager
def _told(store: ArchiveDirectory, name: str) -> Iterator[None]:
    try:
        yield
    except QuireError:
        raise
    except OSError as error:
        raise HistoryError(f"{store.uri}/{name}: {error}") from error


def _make_durably(path: str) -> None:
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    _make_durably(above)
    os.makedirs(path, exist_ok=True)
    _sync(above)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
