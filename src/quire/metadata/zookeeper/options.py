"""The identity of a client in ZooKeeper, and the access to the nodes that it creates.

Passwords do not belong in URIs, which appear in process lists and logs. They come from Python or
from the environment:

| variable                    | content                                                        |
|-----------------------------|----------------------------------------------------------------|
| `QUIRE_ZOOKEEPER_AUTH_FILE` | the path of a file with one line, `user:password`              |
| `QUIRE_ZOOKEEPER_AUTH`      | `user:password` itself                                         |
| `QUIRE_ZOOKEEPER_ACL`       | `creator` or `open`: the access to the nodes that are created  |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quire._runtime.limits import check_fields
from quire._runtime.secret_files import exposure_of
from quire.errors import UsageError

AUTH_VARIABLE = "QUIRE_ZOOKEEPER_AUTH"
AUTH_FILE_VARIABLE = "QUIRE_ZOOKEEPER_AUTH_FILE"
ACL_VARIABLE = "QUIRE_ZOOKEEPER_ACL"

CREATOR = "creator"
OPEN = "open"

_AUTH_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """The identity of a client in ZooKeeper, and the access to the nodes that it creates.

    Pass it to `quire.connect`. By default the environment is used (`QUIRE_ZOOKEEPER_AUTH_FILE`). An
    invalid value raises UsageError.
    """

    digest: str | None = field(default=None, repr=False)
    """The identity `user:password` for ZooKeeper's scheme "digest". None means no identity."""
    acl: str | None = None
    """The access to the nodes that the client creates. 'creator' gives all rights to its identity
    and none to others, like zkEnableSecurity in Java. 'open' gives all rights to everyone. None
    means 'creator' with `digest`, and 'open' without it. Existing nodes are not changed."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        if self.digest is not None and not self._usable(self.digest):
            raise UsageError(
                "the identity for ZooKeeper (not shown, because it contains a password) is not "
                "of the form user:password",
                remedy=f"Correct ZooKeeperOptions(digest=...), {AUTH_VARIABLE} or the file in "
                f"{AUTH_FILE_VARIABLE}: "
                "printable characters, and neither part empty",
            )
        if self.acl not in (None, CREATOR, OPEN):
            raise UsageError(
                f"acl={self.acl!r} is not valid for ZooKeeper's nodes: use 'creator' or 'open'"
            )
        if self.acl == CREATOR and self.digest is None:
            raise UsageError(
                "acl='creator' cannot be used, because this process has no identity for ZooKeeper",
                remedy=f"Set ZooKeeperOptions(digest=...), or the variable {AUTH_FILE_VARIABLE}",
            )

    @property
    def private(self) -> bool:
        """Whether the nodes are accessible to their creator only."""
        return self.acl == CREATOR or (self.acl is None and self.digest is not None)

    @property
    def user(self) -> str | None:
        """The user of the identity, or None."""
        return None if self.digest is None else self.digest.partition(":")[0]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ZooKeeperOptions:
        """Return the options that the environment variables give now.

        Args:
            environment: The variables. The default is the environment of the process.

        Returns:
            The options.

        Raises:
            UsageError: A variable has an invalid value. The message names it.
        """
        values = os.environ if environment is None else environment
        digest = values.get(AUTH_VARIABLE) or None
        file = values.get(AUTH_FILE_VARIABLE)
        if file:
            if digest is not None:
                raise UsageError(
                    f"the environment variables {AUTH_VARIABLE} and {AUTH_FILE_VARIABLE} are "
                    "both set: unset one of them"
                )
            digest = _read(file)
        return cls(digest, values.get(ACL_VARIABLE) or None)

    @staticmethod
    def _usable(digest: str) -> bool:
        user, colon, password = digest.partition(":")
        return bool(user and colon and password) and digest.isprintable()


def _read(file: str) -> str:
    if problem := exposure_of(file):
        raise UsageError(problem)
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(_AUTH_BYTES_MAX + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"the environment variable {AUTH_FILE_VARIABLE} names the file {file}, which cannot "
            f"be read: {why}",
            remedy="Correct the variable, or the permissions of the file",
        ) from None
    line = text.removesuffix("\n").removesuffix("\r")
    if len(text) > _AUTH_BYTES_MAX or not ZooKeeperOptions._usable(line):
        raise UsageError(
            f"the environment variable {AUTH_FILE_VARIABLE} names the file {file}, which does "
            "not contain exactly one line of the form user:password",
            remedy="Write one line of printable characters into it, with neither part empty",
        )
    return line
