"""The positions that named readers store with the stream."""

from __future__ import annotations

from quire._runtime.opening import Ready, represented
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import StreamFormatError
from quire.errors import (
    KeyExistsError,
    MetadataDeniedError,
    MetadataError,
    NoSuchKeyError,
    NoSuchStreamError,
    UsageError,
    VersionConflictError,
    check_type,
)
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Create, Delete, Put
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.read.positions import check_position
from quire.streams.read.records import undecodable

COMMIT_ATTEMPTS_MAX = 20


def check_subscription_name(name: str) -> str:
    """Check the name of a subscription, and return it.

    Args:
        name: The name.

    Returns:
        The same name.

    Raises:
        UsageError: The name is not valid.
    """
    check_type("the name of a subscription", name, str)
    if not name or "/" in name or name in (".", "..") or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot be the name of a subscription",
            remedy="Use printable characters without '/', and a name other than '.' and '..'",
        )
    return name


class Subscription(Ready):
    """The stored position of a named reader. `Namespace.subscription` returns it.

    Any number of processes may share a subscription. Its position only moves forward. A
    subscription belongs to the stream with which it is first used. If that stream is deleted or
    renamed, and another stream gets its name, every call raises NoSuchStreamError. If the metadata
    store refuses what a call needs, the call raises MetadataDeniedError. If the client is closed,
    every call raises ClientClosedError.
    """

    name: str
    """The name of the reader."""

    def __init__(self, metadata: StreamMetadata, name: str) -> None:
        self.name = check_subscription_name(name)
        self._metadata = metadata
        self._path = metadata.paths.subscriber(name)
        self._life: str | None = None
        """The path of the stream's life at the first use, or "" if the client may not read it."""

    def __repr__(self) -> str:
        return represented(self, name=self.name, stream=self._metadata.paths.name)

    async def position(self) -> DLSN | None:
        """Return the position of the first record that is still to be processed.

        Start a reader there. Cancelling this call is safe.

        Returns:
            The position, or None if nothing was committed yet.

        Raises:
            NoSuchStreamError: The stream does not exist, or another stream has its name.
            StreamDamagedError: The stored position cannot be decoded.
            LaterStreamError: A later version stored the position.
            MetadataUnavailableError: The metadata store does not answer.
        """
        # The server may lag behind the process that has committed last.
        await self._metadata.tree.sync()
        await self._check_life()
        try:
            value = (await self._metadata.tree.read(self._path)).value
        except NoSuchKeyError:
            return None
        return self._decode(value)

    async def find_life(self) -> None:
        """Bind the subscription to the stream that has the name now.

        Without this call, the first use does so. Cancelling this call is safe.

        Raises:
            NoSuchStreamError: The stream does not exist, or another stream has its name.
            MetadataUnavailableError: The metadata store does not answer.
        """
        await self._check_life()

    async def commit(self, position: DLSN) -> bool:
        """Store that everything before a position has been processed.

        The position is durable on return. If the call is cancelled, the position may or may not
        have been stored: repeating the call is safe.

        Args:
            position: The position of the first record that is still to be processed. After the last
                record that was processed, this is `record.position.next_slot()`.

        Returns:
            Whether the stored position is now this position. False means that it is a later one
            already.

        Raises:
            NoSuchStreamError: The stream does not exist, or another stream has its name.
            UsageError: `position` is not a DLSN.
            StreamDamagedError: The stored position cannot be decoded. It was not changed.
            LaterStreamError: A later version stored the position. It was not changed.
            MetadataError: Other processes moved the subscription during each of many attempts.
                It was not changed. Try again.
            MetadataUnavailableError: The metadata store does not answer. Outcome unknown.
        """
        check_position(position)
        tree, guard = self._metadata.tree, await self._check_life()
        value = position.to_text().encode("ascii")
        for _ in range(COMMIT_ATTEMPTS_MAX):
            try:
                found = await tree.read(self._path)
            except NoSuchKeyError:
                await self._metadata.make_below(self._metadata.paths.subscribers)
                try:
                    await tree.commit(Create(self._path, value), *guard)
                    return True
                except KeyExistsError:
                    continue
                except NoSuchKeyError:
                    await self._check_life()
                    continue
            before = self._decode(found.value)
            if before is not None and before >= position:
                return before == position
            try:
                await tree.commit(Put(self._path, value, found.version), *guard)
                return True
            except (VersionConflictError, NoSuchKeyError):
                await self._check_life()
        raise MetadataError(
            f"subscription {self.name} of stream {self._metadata.paths.name} was not moved: other "
            f"processes moved it during each of {COMMIT_ATTEMPTS_MAX} attempts",
            remedy="Try again",
        )

    async def delete(self) -> None:
        """Delete the subscription. Deleting one that does not exist succeeds.

        If the call is cancelled, the subscription may or may not have been deleted.

        Raises:
            NoSuchStreamError: Another stream has the name of the stream. Nothing was deleted.
            MetadataUnavailableError: The metadata store does not answer. Outcome unknown.
        """
        try:
            guard = await self._check_life()
            await self._metadata.tree.commit(*guard, Delete(self._path))
        except (NoSuchKeyError, NoSuchStreamError):
            await self._check_life_if_any()  # it is gone already, unless another stream came

    async def _check_life_if_any(self) -> None:
        """Raise NoSuchStreamError if another stream has the name, but not if there is none."""
        try:
            await self._check_life()
        except NoSuchStreamError:
            if await self._metadata.exists():
                raise

    async def _check_life(self) -> list[Check]:
        """Return the condition under which a position may be stored.

        The list is empty if this client may not read the life of the stream. Raises
        NoSuchStreamError if the stream was deleted, or another one has its name by now.
        """
        try:
            path = (await self._metadata.life()).path
        except MetadataDeniedError:
            path = ""
        if self._life is None:
            self._life = path
        if path != self._life:
            raise self._metadata.replaced()
        return [Check(path, ANY_VERSION)] if path else []

    def _decode(self, value: bytes) -> DLSN | None:
        if not value:
            return None
        try:
            return DLSN.from_text(value.decode("ascii"))
        except (StreamFormatError, UnicodeDecodeError) as error:
            where = f"subscription {self.name} of stream {self._metadata.paths.name}"
            raise undecodable(
                where, error,
                "Restore its node from a backup of the metadata store, or use another subscription",
            ) from None  # fmt: skip
