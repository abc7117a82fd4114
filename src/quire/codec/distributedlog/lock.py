"""Members of the lock of a stream: names of ephemeral, sequential nodes
(distributedlog spec, 2.7).

| name                                 | made by                                                |
|--------------------------------------|--------------------------------------------------------|
| `member_CLIENT_sSESSION_0000000007`  | everyone today: client id encoded as in a URL, session |
|                                      | in decimal, filled up with blanks to ten places        |
| `member_CLIENT_0000000007`           | old writers                                            |
| `member_0000000007`                  | older ones                                             |

The node's data is the client id, in UTF-8. The member with the lowest number owns the lock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote_plus

_PREFIX = "member"
_SESSION = re.compile(r"s *(-?\d+)", re.ASCII)
_NUMBER = re.compile(r"-?\d+", re.ASCII)
_PARTS = 4
NO_NUMBER = 2**63
"""Of a member whose name ends with something else: behind all others."""


@dataclass(frozen=True, slots=True)
class LockMember:
    name: str
    client_id: str
    session_id: int
    number: int

    @classmethod
    def parse(cls, name: str, data: bytes, ephemeral_owner: int) -> LockMember:
        """A child of the lock node; `ephemeral_owner` is the session that the node belongs to.

        Where the name has not exactly the four parts (a client id may contain `_`), the node's
        data and owner tell who it is, as they do for Java.
        """
        parts = name.split("_")
        number = int(parts[-1]) if _NUMBER.fullmatch(parts[-1]) else NO_NUMBER
        session = _SESSION.fullmatch(parts[2]) if len(parts) == _PARTS else None
        if session is None:
            return cls(name, data.decode(errors="replace"), ephemeral_owner, number)
        return cls(name, unquote_plus(parts[1]), int(session[1]), number)


def lock_member_prefix(client_id: str, session_id: int) -> str:
    """The name of a new member, up to the number that the store puts behind it."""
    # Java's encoder leaves * alone, and ~ not.
    encoded = quote_plus(client_id, safe="*").replace("~", "%7E")
    return f"{_PREFIX}_{encoded}_s{session_id:10d}_"
