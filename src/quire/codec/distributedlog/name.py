"""Names of streams, the nodes that a stream has, and the numbers in them
(distributedlog spec, 2.2 and 2.3).

| node below the namespace     | data                                                           |
|------------------------------|----------------------------------------------------------------|
| `NAME`                       | empty; what listings show                                      |
| `NAME/<default>`             | empty; root of what follows                                    |
| `.../maxtxid`                | highest last txid of the completed segments, in decimal        |
| `.../version`                | int32 -1                                                       |
| `.../lock`, `.../readLock`   | empty; parents of lock members (`stream_lock`)                 |
| `.../ledgers`                | highest segment number ever started; parent of the segments    |
| `.../allocation`             | a ledger that is allocated and not yet used, else empty        |
| `.../subscribers/ID`         | a subscription's position (`dlsn`), as text                    |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.errors import MetadataError, UsageError, check_type

PARTITION = "<default>"
LAYOUT_DATA = b"\xff\xff\xff\xff"
"""Of the node `version`: a writer refuses any other."""
_NUMBER = re.compile(rb"-?\d{1,19}")
_INT64_END = 2**63

# Java looks at UTF-16, where all that lies past U+FFFF is made of refused halves.
_REFUSED = re.compile(
    "[\u0001-\u001e\u0080-\u009e\ud800-\uf8fe\ufff1-\ufffe]|[^\u0000-\uffff]"
)  # fmt: skip


def is_reserved(name: str) -> bool:
    """Whether a child of a namespace is no stream, but something internal."""
    return name.startswith((".", "<"))


def stream_name(name: str) -> str:
    """The name without a leading slash, checked. Raises UsageError with the reason."""
    check_type("the name of a stream", name, str)
    plain = name[1:] if name.startswith("/") else name
    reason = _objection(plain)
    if reason is not None:
        raise UsageError(f"{name!r} cannot be the name of a stream: {reason}")
    return plain


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
    for character in "<> \0":
        if character in name:
            return f"it contains {character!r}"
    match = _REFUSED.search(name)
    return f"it contains {match[0]!r}" if match else None


@dataclass(frozen=True, slots=True)
class StreamPaths:
    """Where a stream's nodes are. `name` as `stream_name` gave it."""

    namespace: str
    """Its path: absolute, without a slash at the end."""
    name: str

    @property
    def stream(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def root(self) -> str:
        return f"{self.namespace}/{self.name}/{PARTITION}"

    @property
    def max_txid(self) -> str:
        return f"{self.root}/maxtxid"

    @property
    def version(self) -> str:
        return f"{self.root}/version"

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    @property
    def read_lock(self) -> str:
        return f"{self.root}/readLock"

    @property
    def segments(self) -> str:
        return f"{self.root}/ledgers"

    @property
    def allocation(self) -> str:
        return f"{self.root}/allocation"

    @property
    def subscribers(self) -> str:
        return f"{self.root}/subscribers"

    def segment(self, name: str) -> str:
        return f"{self.segments}/{name}"

    def subscriber(self, subscriber_id: str) -> str:
        return f"{self.subscribers}/{subscriber_id}"

    def holds_lock_members(self, node: str) -> bool:
        """Whether what is below this node are members of a lock: of the stream's, or of the one
        that a reader or a subscriber's readers have."""
        return node == self.lock or node.endswith("/readLock")

    def created(self) -> list[tuple[str, bytes]]:
        """The nodes of a new stream below those of its name, parents first, with their data."""
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
    """Of the nodes `maxtxid`, `ledgers` and `allocation`."""
    return str(number).encode("ascii")


def decode_number(data: bytes, node: str) -> int:
    """`node` names it in the MetadataError that anything else than a number raises."""
    if _NUMBER.fullmatch(data):
        number = int(data)
        if -_INT64_END <= number < _INT64_END:
            return number
    raise MetadataError(f"{node} does not hold a number: {data[:40]!r}")
