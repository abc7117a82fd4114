"""Roles in certificates, in the form that Apache's `BookieAuthZFactory` reads.

The first OU of the certificate's subject has groups `CODE:NAME,NAME...` that are separated by `;`.
The code of roles is 0, and that of a cluster is 1: `0:writer,reader;1:east`. Only the first role
counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

ROLE_CODE = "0"
_OU = "organizationalUnitName"
_GROUP = re.compile(r"([0-9]+):(.*)")

Subject = Sequence[Sequence[tuple[str, str]]]
"""The relative names of a subject in the order of the certificate, each a sequence of (type,
value). `ssl.SSLObject.getpeercert()["subject"]` has this form."""


def organizational_unit(subject: Subject) -> str | None:
    """Return the first OU in the order of the certificate, or None."""
    return next((value for name in subject for kind, value in name if kind == _OU), None)


def roles_of(unit: str) -> tuple[str, ...]:
    """Return the roles in an OU.

    Malformed groups are skipped. If several groups have the code of roles, the last one counts, as
    in Apache.
    """
    found: tuple[str, ...] = ()
    for group in unit.split(";"):
        match = _GROUP.match(group)
        if match is not None and match[1] == ROLE_CODE:
            found = tuple(role.strip() for role in match[2].strip().split(","))
    return found


def is_authorized(subject: Subject, authorized: Collection[str]) -> bool:
    """Return whether the first role of the certificate is in `authorized`.

    An empty role never is.
    """
    unit = organizational_unit(subject)
    roles = roles_of(unit) if unit is not None else ()
    return bool(roles) and roles[0] != "" and roles[0] in authorized
