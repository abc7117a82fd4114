"""The effective configuration of a process for people: values, defaults, and where they come from.

Secrets are never part of it. No key has a secret as its value today, because passwords and tokens
are in files of their own. The rules here also apply to keys that are added later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING
from typing import Any

from quire.configuration.fields import ConfigKey, inner_tables, keys
from quire.configuration.layers import DEFAULT, Configuration
from quire.configuration.values import as_toml

HIDDEN = "(hidden)"
"""The text that is shown instead of a secret."""
_SECRET_NAME = re.compile(r"(^|[._])(password|passphrase|token|secret|credentials?)$")
"""The names of keys with a secret. A key that ends in `_file` has only the name of a file."""
_KEY_CONTENT = re.compile(r"-----BEGIN ")
_CREDENTIALS = re.compile(r"(?<!/)//(?!/).*@", re.DOTALL)
"""The user and the password in a URI, up to the last `@`.

A password may have a slash that should have been encoded. Then a part of the host or the path may
be hidden too, which is better than to show a part of the password. A path after three or more
slashes is not a host.
"""


def report(
    found: Configuration, tables: Collection[str], file: str | None = None
) -> dict[str, Any]:
    """Return the configuration as JSON.

    Args:
        found: The configuration.
        tables: The tables that apply to the process, such as "bookie". "" has the keys before the
            first table.
        file: The configuration file, if there is one.
    """
    shown = [_key(found, one) for one in keys().values() if one.name.split(".")[0] in tables
             or ("" in tables and "." not in one.name)]  # fmt: skip
    return {"file": file, "keys": shown}


def _key(found: Configuration, key: ConfigKey) -> dict[str, Any]:
    value, origin = found.values[key.name], found.origins[key.name]
    hidden = (
        key.rule.secret
        or _SECRET_NAME.search(key.name) is not None
        or _KEY_CONTENT.search(str(value)) is not None
    )
    table = inner_tables().get(key.name.rpartition(".")[0])
    return {
        "key": key.name,
        "value": _shown(value, hidden),
        "default": _shown(None if key.default is MISSING else key.default, hidden),
        "changed": origin != DEFAULT,
        "origin": _origin(origin, hidden),
        "unit": key.unit,
        "environment": key.environment,
        "meaning": key.meaning,
        # The keys of an optional table, such as that of TLS, have no effect without the table.
        "applies": table is None or not table.optional or table.name in found.tables,
    }


def _shown(value: Any, hidden: bool) -> str | None:
    """Return the value in TOML's form, or None if it is not set."""
    if value is None:
        return None
    if hidden and value not in ("", ()):
        return HIDDEN
    whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if whole else as_toml(_public(value))  # a port without separators


def _public(value: Any) -> Any:
    """Return the value without the credentials in its texts."""
    if isinstance(value, str):
        return _CREDENTIALS.sub(f"//{HIDDEN}@", value)
    if isinstance(value, tuple | list):
        return [_public(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _public(one) for name, one in value.items()}
    return value


def _origin(origin: str, hidden: bool) -> str:
    """Return the place of a value. An option such as `--set password=x` contains the value."""
    if hidden:
        option, _, assignment = origin.partition(" ")
        return f"{option} {assignment.partition('=')[0]}=…" if assignment else option
    return str(_public(origin))
