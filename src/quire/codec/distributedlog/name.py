"""The names of streams, and the nodes of a stream.

| node below the namespace     | data                                                             |
|------------------------------|------------------------------------------------------------------|
| `NAME`                       | empty; listings show it                                          |
| `NAME/<default>`             | empty; the parent of the following nodes                         |
| `.../maxtxid`                | highest last txid of the completed segments, in decimal          |
| `.../version`                | `ffffffff`: -1 as a big-endian int32                             |
| `.../lock`, `.../readLock`   | empty; parents of lock members (`lock`)                          |
| `.../ledgers`                | highest segment number ever started, in decimal; the parent of   |
|                              | the segments (`segment`)                                         |
| `.../allocation`             | the id, in decimal, of a ledger that exists and is not used yet, |
|                              | or empty                                                         |
| `.../subscribers/ID`         | the position of a subscription (`dlsn`), as text                 |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.errors import MetadataError, UsageError, check_type

PARTITION = "<default>"
HIDDEN = ".quire"
"""The node that each namespace has that Quire created or in which it has written a stream.

It holds Quire's own data, so no part of a name is this.
"""
LAYOUT_DATA = b"\xff\xff\xff\xff"
"""The data of the node `version`. A writer refuses any other."""
_NUMBER = re.compile(rb"-?\d{1,19}")
_INT64_END = 2**63

# Java checks UTF-16, in which everything after U+FFFF consists of two refused characters.
_REFUSED = re.compile(
    "[\u0001-\u001e\u0080-\u009e\ud800-\uf8fe\ufff1-\ufffe]|[^\u0000-\uffff]"
)  # fmt: skip


def is_reserved(name: str) -> bool:
    """Return whether a child of a namespace is an internal node and not a stream."""
    return name.startswith((".", "<"))


def may_lead_to_stream(part: str) -> bool:
    """Return whether `part` can be a part of a stream's name, but not the first one.

    Such a part may begin with ".", although the whole name may not.
    """
    return part != HIDDEN and not part.startswith("<")


def stream_name(name: str) -> str:
    """Check the name of a stream, and return it without a leading slash.

    Args:
        name: The name, such as "orders" or "orders/eu".

    Returns:
        The name.

    Raises:
        UsageError: The name is invalid. The message contains the reason.
    """
    check_type("the name of a stream", name, str)
    plain = name[1:] if name.startswith("/") else name
    reason = _objection(plain)
    if reason is not None:
        raise UsageError(f"{name!r} cannot be the name of a stream: {reason}")
    return plain


def may_name_stream(name: str) -> bool:
    """Return whether a stream can have this name, which must not begin with a slash."""
    return _objection(name) is None


def _objection(name: str) -> str | None:
    if not name:
        return "it is empty"
    if is_reserved(name):
        return f"names that begin with {name[0]!r} are reserved"
    if name.endswith("/"):
        return "it ends with /"
    for element in name.split("/"):
        if not element:
            return "a part between two / is empty"
        if element in (".", ".."):
            return f"a part of it is {element!r}"
        if element == HIDDEN:
            return f"a part of it is {element!r}, which is reserved"
    for character in "<> \0":
        if character in name:
            return f"it contains {character!r}"
    match = _REFUSED.search(name)
    return f"it contains {match[0]!r}" if match else None


@dataclass(frozen=True, slots=True)
class StreamPaths:
    """The paths of the nodes of a stream in the metadata store. Most programs do not need them."""

    namespace: str
    """The absolute path of the namespace, without a final slash."""
    name: str
    """The name of the stream, in the form that `stream_name` returns."""

    @property
    def stream(self) -> str:
        """The node with the name of the stream."""
        return f"{self.namespace}/{self.name}"

    @property
    def root(self) -> str:
        """The parent of all other nodes of the stream."""
        return f"{self.namespace}/{self.name}/{PARTITION}"

    @property
    def max_txid(self) -> str:
        """The node with the highest last txid of the completed segments."""
        return f"{self.root}/maxtxid"

    @property
    def version(self) -> str:
        """The node with the version of the stream's layout."""
        return f"{self.root}/version"

    @property
    def lock(self) -> str:
        """The parent of the members of the write lock."""
        return f"{self.root}/lock"

    @property
    def read_lock(self) -> str:
        """The parent of the members of the lock of Java's readers."""
        return f"{self.root}/readLock"

    @property
    def segments(self) -> str:
        """The parent of the nodes of the segments, which a stream has if it exists."""
        return f"{self.root}/ledgers"

    @property
    def allocation(self) -> str:
        """The node with the ledger that was created ahead of its use."""
        return f"{self.root}/allocation"

    @property
    def subscribers(self) -> str:
        """The parent of the nodes of the subscriptions."""
        return f"{self.root}/subscribers"

    def segment(self, name: str) -> str:
        """Return the path of the node of a segment. `name` is the name of that node."""
        return f"{self.segments}/{name}"

    def subscriber(self, subscriber_id: str) -> str:
        """Return the path of the node of the subscription with this name."""
        return f"{self.subscribers}/{subscriber_id}"

    def holds_lock_members(self, node: str) -> bool:
        """Return whether the children of a node are members of a lock.

        The lock is that of the stream, of a reader, or of the readers of a subscription.
        """
        return node == self.lock or node.endswith("/readLock")

    def created(self) -> list[tuple[str, bytes]]:
        """Return the nodes of a new stream below the node with its name, as (path, data).

        Each parent comes before its children.
        """
        return [
            (self.root, b""),
            (self.max_txid, encode_number(0)),
            (self.version, LAYOUT_DATA),
            (self.lock, b""),
            (self.read_lock, b""),
            (self.segments, encode_number(0)),
            (self.allocation, b""),
        ]


def encode_number(number: int) -> bytes:
    """Return the data of a node `maxtxid`, `ledgers` or `allocation`."""
    return str(number).encode("ascii")


def decode_number(data: bytes, node: str) -> int:
    """Return the number in a node. `node` is the name of the node for the error message.

    Raises:
        MetadataError: The data is not a number.
    """
    if _NUMBER.fullmatch(data):
        number = int(data)
        if -_INT64_END <= number < _INT64_END:
            return number
    raise MetadataError(
        f"the node {node} in the metadata store does not contain a number, but {data[:40]!r}",
        remedy="Restore the node from a backup of the metadata store",
    )
