"""Roles in certificates, as Apache's `BookieAuthZFactory` reads them (wire-protocol spec, 1.6).

The first OU of the certificate's subject has groups `CODE:NAME,NAME...` separated by `;`. Code 0
are roles, code 1 is a cluster: `0:writer,reader;1:east`. The first role alone decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

ROLE_CODE = "0"
_OU = "organizationalUnitName"
_GROUP = re.compile(r"([0-9]+):(.*)")

Subject = Sequence[Sequence[tuple[str, str]]]
"""Relative names in the order of the certificate, each a sequence of (type, value): what
`ssl.SSLObject.getpeercert()["subject"]` is."""


def organizational_unit(subject: Subject) -> str | None:
    """The first OU in the order of the certificate."""
    return next((value for name in subject for kind, value in name if kind == _OU), None)


def roles_of(unit: str) -> tuple[str, ...]:
    """The roles in an OU. Groups that cannot be understood are left out; of several with the code
    of roles the last counts, which is what Apache does."""
    found: tuple[str, ...] = ()
    for group in unit.split(";"):
        match = _GROUP.match(group)
        if match is not None and match[1] == ROLE_CODE:
            found = tuple(role.strip() for role in match[2].strip().split(","))
    return found


def is_authorized(subject: Subject, authorized: Collection[str]) -> bool:
    """Whether the first role of the certificate is among `authorized`; an empty one never is."""
    unit = organizational_unit(subject)
    roles = roles_of(unit) if unit is not None else ()
    return bool(roles) and roles[0] != "" and roles[0] in authorized
