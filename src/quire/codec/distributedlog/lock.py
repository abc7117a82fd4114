"""The names of the nodes of a stream's lock.

Each member of the lock is an ephemeral, sequential node. Its data is the client id in UTF-8. The
member with the lowest number owns the lock.

| name                                 | written by                                             |
|--------------------------------------|--------------------------------------------------------|
| `member_CLIENT_sSESSION_0000000007`  | current versions: the client id, encoded as in a URL,  |
|                                      | and the session id in decimal, padded with blanks to   |
|                                      | ten characters                                         |
| `member_CLIENT_0000000007`           | old writers                                            |
| `member_0000000007`                  | older writers                                          |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote_plus

_PREFIX = "member"
_SESSION = re.compile(r"s *(-?\d{1,19})", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_PARTS = 4
NO_NUMBER = 2**63
"""The number that a member gets if its name does not end with one. It is higher than all others."""


@dataclass(frozen=True, slots=True)
class LockMember:
    """One member of a lock."""

    name: str
    client_id: str
    session_id: int
    number: int

    @classmethod
    def parse(cls, name: str, data: bytes, ephemeral_owner: int) -> LockMember:
        """Return the member that a child of the lock node represents.

        If the name does not have exactly four parts (a client id may contain `_`), the node's data
        and owner identify the member, as in Java.

        Args:
            name: The name of the child.
            data: The data of the node.
            ephemeral_owner: The session that the node belongs to.
        """
        parts = name.split("_")
        number = int(parts[-1]) if _NUMBER.fullmatch(parts[-1]) else NO_NUMBER
        session = _SESSION.fullmatch(parts[2]) if len(parts) == _PARTS else None
        if session is None:
            return cls(name, data.decode(errors="replace"), ephemeral_owner, number)
        return cls(name, unquote_plus(parts[1]), int(session[1]), number)


def lock_member_prefix(client_id: str, session_id: int) -> str:
    """Return the name of a new member, up to the number that the store appends."""
    # Java's encoder keeps * and encodes ~.
    encoded = quote_plus(client_id, safe="*").replace("~", "%7E")
    return f"{_PREFIX}_{encoded}_s{session_id:10d}_"
