"""Who we are to ZooKeeper, and who may touch what we create there.

Passwords do not belong into URIs, which end up in process lists and logs. They come from Python, or
from the environment:

| variable                    | content                                                     |
|-----------------------------|-------------------------------------------------------------|
| `QUIRE_ZOOKEEPER_AUTH_FILE` | a file with one line, `user:password`                       |
| `QUIRE_ZOOKEEPER_AUTH`      | `user:password` itself                                      |
| `QUIRE_ZOOKEEPER_ACL`       | `creator` or `open`: who may do what with nodes we create   |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quire._runtime.limits import check_fields
from quire.errors import UsageError

AUTH_VARIABLE = "QUIRE_ZOOKEEPER_AUTH"
AUTH_FILE_VARIABLE = "QUIRE_ZOOKEEPER_AUTH_FILE"
ACL_VARIABLE = "QUIRE_ZOOKEEPER_ACL"

CREATOR = "creator"
OPEN = "open"

_AUTH_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """For `open_metadata` and `quire.connect`; without it the environment counts. Raises UsageError
    for what cannot be."""

    digest: str | None = field(default=None, repr=False)
    """`user:password` for ZooKeeper's scheme "digest"; None: nobody in particular."""
    acl: str | None = None
    """Of the nodes that we create. 'creator': all rights to our identity, none to others (Java's
    zkEnableSecurity). 'open': all rights to everyone. None: 'creator' with `digest`, else 'open'.
    Nodes that exist are left as they are."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        if self.digest is not None and not self._usable(self.digest):
            raise UsageError(
                "the identity for ZooKeeper is not of the form user:password (it is not shown here)"
            )
        if self.acl not in (None, CREATOR, OPEN):
            raise UsageError(f"{self.acl!r} is no access to ZooKeeper's nodes: use creator or open")
        if self.acl == CREATOR and self.digest is None:
            raise UsageError(
                "nodes in ZooKeeper can belong to their creator only if it has an identity",
                remedy=f"Give one: digest=, or {AUTH_FILE_VARIABLE}",
            )

    @property
    def private(self) -> bool:
        """Whether nodes belong to their creator alone."""
        return self.acl == CREATOR or (self.acl is None and self.digest is not None)

    @property
    def user(self) -> str | None:
        return None if self.digest is None else self.digest.partition(":")[0]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ZooKeeperOptions:
        """What the environment says, read now. `UsageError` names the variable that is wrong."""
        values = os.environ if environment is None else environment
        digest = values.get(AUTH_VARIABLE) or None
        file = values.get(AUTH_FILE_VARIABLE)
        if file:
            if digest is not None:
                raise UsageError(
                    f"{AUTH_VARIABLE} and {AUTH_FILE_VARIABLE} are both set: unset one of them"
                )
            digest = _read(file)
        return cls(digest, values.get(ACL_VARIABLE) or None)

    @staticmethod
    def _usable(digest: str) -> bool:
        user, colon, password = digest.partition(":")
        return bool(user and colon and password) and digest.isprintable()


def _read(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(_AUTH_BYTES_MAX + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"{AUTH_FILE_VARIABLE} names {file}, which cannot be read: {why}"
        ) from None
    line = text.removesuffix("\n").removesuffix("\r")
    if len(text) > _AUTH_BYTES_MAX or not ZooKeeperOptions._usable(line):
        raise UsageError(
            f"{AUTH_FILE_VARIABLE} names {file}, which does not hold one line user:password"
        )
    return line
