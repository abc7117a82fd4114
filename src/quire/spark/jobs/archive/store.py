"""A directory for offloaded history, on this machine or in an object store.

pyarrow provides access to the URIs that it knows (`/path`, `file://`, `s3://`, `gs://`, `hdfs://`
...), and fsspec to all others, if it is installed. Nothing here needs an atomic rename or a
conditional put, because names are never used twice. A file that was written must appear in a
listing that begins afterwards. All of these stores guarantee that.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import crc32c

from quire._runtime.uris import text_without_credentials, without_credentials
from quire.client.read.arrow import import_pyarrow
from quire.errors import HistoryError, QuireError, UsageError

GLOB = re.compile(r"([*?\[\]{}\\])")
BUCKETS = ("s3", "gcs")
"""The kinds of pyarrow's stores in which the first part of a path is a bucket."""
HADOOP_SCHEMES = {"s3": "s3a"}
"""The names that Spark uses for stores to which pyarrow gives another name."""
VERIFYING = {"parquet.page.verify-checksum.enabled": "true"}
"""The options with which Spark compares the pages of Parquet files with the checksums in them."""
CHUNK_BYTES = 8 * 1024 * 1024
"""The number of bytes that are read at once."""
PARTIAL = ".partial-"
"""The prefix of local files that were not renamed yet, and that nobody reads."""


class ArchiveDirectory:
    """A directory for offloaded history, on this machine or in an object store.

    Paths are relative to the directory, with slashes. All calls raise HistoryError if the store
    fails.
    """

    def __init__(self, uri: str, filesystem: Any = None) -> None:
        """Open a directory.

        `filesystem` is a filesystem object of pyarrow, for stores that no URI names. `uri` is then
        the path in it.
        """
        import_pyarrow()
        from pyarrow import fs

        if filesystem is None:
            filesystem, path = _open(uri)
        else:
            path = uri
        self.filesystem = filesystem
        self.is_local = isinstance(filesystem, fs.LocalFileSystem)
        self._path = path.rstrip("/")
        base, question, query = uri.partition("?")
        self.uri = self._path if self.is_local else f"{base.rstrip('/')}{question}{query}"

    def below(self, name: str) -> ArchiveDirectory:
        """Return a directory inside this one. Nothing in its name is decoded."""
        found = ArchiveDirectory(self.path(name), self.filesystem)
        base, question, query = self.uri.partition("?")
        found.uri = f"{base}/{name}{question}{query}"
        return found

    def path(self, name: str) -> str:
        """Return the path as `filesystem` names it."""
        return f"{self._path}/{name}" if name else self._path

    def spark_path(self, name: str, *, pattern: bool = True) -> str:
        """Return the path of `name` below this directory as Spark names it.

        The path has escapes for what Spark takes for patterns. With `pattern=False` there are no
        escapes, for places where Spark expects no pattern. The path has neither the credentials nor
        the query of the URI, so Spark must have the credentials from its own configuration.
        """
        scheme, colon, rest = self.location(name).partition(":")
        path = f"{HADOOP_SCHEMES.get(scheme, scheme)}{colon}{rest}"
        if self.is_local:
            path = "file://" + self.path(name)
        return GLOB.sub(r"\\\1", path) if pattern else path

    def location(self, name: str = "") -> str:
        """Return the URI of a file or of this directory without credentials, as messages show it.

        The query, which only pyarrow and fsspec understand, is left out too.
        """
        base = self.uri if self.is_local else without_credentials(self.uri)
        return f"{base}/{name}" if name else base

    def text_of(self, error: BaseException) -> str:
        """Return the text of a library's error without credentials, as messages show it."""
        return text_without_credentials(str(error), "" if self.is_local else self.uri)

    def cause(self, error: Exception) -> Exception | None:
        """Return the error as a cause, which tracebacks show, or None if it shows credentials."""
        return error if self.text_of(error) == str(error) else None

    def require_bucket(self) -> None:
        """Raise HistoryError if the bucket of this directory does not exist.

        A listing does not report this: it is empty then.
        """
        from pyarrow import fs

        if self.filesystem.type_name not in BUCKETS:
            return
        bucket = self._path.partition("/")[0]
        try:
            [info] = self.filesystem.get_file_info([bucket])
        except OSError:  # Keys for a part of the bucket may not be allowed to ask this.
            return
        if info.type == fs.FileType.NotFound:
            raise HistoryError(
                f"the bucket {bucket} of the directory {self.location()} does not exist",
                remedy="Correct the URI, or create the bucket",
            )

    def files(self, directory: str, *, recursive: bool = False) -> dict[str, int]:
        """Return the size in bytes of each file in a directory, by name.

        With `recursive`, files of directories in it are included: their names are paths. The result
        is empty if there is no such directory.
        """
        from pyarrow import fs

        where = self.path(directory)
        with _told(self, directory):
            selector = fs.FileSelector(where, allow_not_found=True, recursive=recursive)
            found = self.filesystem.get_file_info(selector)
        above = len(where.strip("/").split("/"))
        sizes = {
            "/".join(info.path.strip("/").split("/")[above:]): info.size
            for info in found
            if info.type == fs.FileType.File and not info.base_name.startswith(PARTIAL)
        }
        return dict(sorted(sizes.items()))

    def directories(self, directory: str) -> list[str]:
        """Return the names of the directories in a directory, or none if it does not exist."""
        from pyarrow import fs

        with _told(self, directory):
            selector = fs.FileSelector(self.path(directory), allow_not_found=True)
            found = self.filesystem.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        from pyarrow import fs

        with _told(self, name):
            [info] = self.filesystem.get_file_info([self.path(name)])
        return int(info.size) if info.type == fs.FileType.File else None

    def make(self, directory: str) -> None:
        """Create a directory and those above it. Local directories are durable on return."""
        with _told(self, directory):
            if self.is_local:
                _make_durably(self.path(directory))
            else:
                self.filesystem.create_dir(self.path(directory), recursive=True)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        with _told(self, name):
            try:
                with self.filesystem.open_input_stream(self.path(name)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def crc(self, name: str) -> int:
        """Return the CRC-32C of a file."""
        found = 0
        with _told(self, name), self.filesystem.open_input_stream(self.path(name)) as stream:
            while data := stream.read(CHUNK_BYTES):
                found = crc32c.crc32c(data, found)
        return found

    def write(self, name: str, data: bytes) -> None:
        """Write a file with a name that was never used.

        On return the file is complete and durable. After an error it does not exist, or is
        complete.
        """
        with _told(self, name):
            if not self.is_local:
                self._write_remote(name, data)
                return
            directory, _, base = self.path(name).rpartition("/")
            partial = f"{directory}/{PARTIAL}{uuid.uuid4().hex}-{base}"
            try:
                with open(partial, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(partial, self.path(name))
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial)
                raise
            _sync(directory)

    def _write_remote(self, name: str, data: bytes) -> None:
        """Write a file to a store in which it appears when its stream is closed.

        A stream has no other end than `close`. After an error of `write` it may publish a part of
        the data, so such a file is removed. If the store does not answer then, the error says so.
        """
        path = self.path(name)
        try:
            with self.filesystem.open_output_stream(path) as stream:
                stream.write(data)
        except BaseException as error:
            self._remove_partial(name, path, len(data), error)
            raise

    def _remove_partial(self, name: str, path: str, size_bytes: int, cause: BaseException) -> None:
        """Remove what a failed write has left of a file, unless it is complete."""
        from pyarrow import fs

        try:
            [info] = self.filesystem.get_file_info([path])
            if info.type == fs.FileType.File and info.size != size_bytes:
                self.filesystem.delete_file(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise HistoryError(
                f"the file {self.location(name)} was not written ({self.text_of(cause)}), and it "
                f"is not known whether an incomplete one exists: {self.text_of(error)}",
                remedy="Look at the file when the store answers. If it has fewer than "
                f"{size_bytes} bytes, delete it. Then run the job again",
            ) from None

    def settle(self, name: str) -> None:
        """Make a file that was written and closed durable.

        Later reads come from the disk again, as far as the system allows to request that.
        """
        if not self.is_local:
            return  # closing the file was enough
        with _told(self, name):
            descriptor = os.open(self.path(name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
            _sync(os.path.dirname(self.path(name)))

    def remove_directory(self, name: str) -> None:
        """Delete a directory with all that is in it. It may be gone already."""
        with _told(self, name):
            try:
                self.filesystem.delete_dir(self.path(name))
            except FileNotFoundError:
                pass

    def remove(self, name: str) -> None:
        """Delete a file. Deleting one that does not exist succeeds."""
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
            raise UsageError(
                "the directory for the files has no name: it is an empty text",
                remedy="Use /path, file://, s3://, gs:// or hdfs://",
            )
        return fs.LocalFileSystem(), os.path.abspath(uri)
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(uri)
        return found
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        known = text_without_credentials(str(error), uri)
    except OSError as error:
        raise _unreachable(uri, error) from None  # The text of the cause shows credentials.
    try:
        filesystem, path = import_module("fsspec.core").url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"the directory {without_credentials(uri)} cannot be opened, because neither library "
            f"supports such a URI. pyarrow: {known}; "
            f"fsspec: {text_without_credentials(str(error), uri)}",
            remedy="Use /path, file://, s3://, gs:// or hdfs://, or install fsspec and what it "
            "needs for this kind of URI",
        ) from None
    except OSError as error:
        raise _unreachable(uri, error) from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), str(path)


def _unreachable(uri: str, error: OSError) -> HistoryError:
    return HistoryError(
        f"the directory {without_credentials(uri)} cannot be reached: "
        f"{text_without_credentials(str(error), uri)}",
        remedy="Check the URI, the network and the credentials for this storage",
    )


@contextmanager
def _told(store: ArchiveDirectory, name: str) -> Iterator[None]:
    try:
        yield
    except QuireError:
        raise
    except OSError as error:
        raise HistoryError(
            f"the file {store.location(name)} cannot be read or written: {store.text_of(error)}",
            remedy="Check the storage and its credentials, and run the job again",
        ) from store.cause(error)


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
