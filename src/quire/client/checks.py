"""Checks of a client's configuration and of a new ledger that need no I/O."""

from __future__ import annotations

from collections.abc import Mapping

from quire.client.cluster.placement import make_policy
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.config import ClientConfig
from quire.core.placement.values import parse_location
from quire.errors import ArgumentTypeError, UsageError, check_type, whole_number
from quire.net.tls import client_context


def check_config(config: ClientConfig) -> None:
    """Check the configuration of a client.

    Raises:
        UsageError: It is not a `ClientConfig`, the placement policy does not exist, its options
            contradict each other, or the client's own location is not valid.
        TlsConfigError: A certificate, key or authority file cannot be used.
    """
    if not isinstance(config, ClientConfig):
        raise ArgumentTypeError(f"config must be a quire.ClientConfig, not {type(config).__name__}")
    make_policy(config.placement)
    if config.placement.own_location:
        parse_location(config.placement.own_location)
    if config.tls is not None:
        client_context(config.tls)


def checked_ledger_id(ledger_id: int) -> int:
    """Return a ledger id as an int of Python.

    Raises ArgumentTypeError for another type, and UsageError for a number that is out of range.
    """
    ledger_id = whole_number("a ledger id", ledger_id)
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise UsageError(f"{ledger_id} is not a ledger id: use 0 to 2**63-1")
    return ledger_id


def check_new_ledger(password: bytes, custom: Mapping[str, bytes] | None) -> None:
    """Raise UsageError if a value has a wrong type or cannot be stored in a ledger's metadata."""
    check_type("a password", password, bytes)
    if custom is not None and not isinstance(custom, Mapping):
        raise ArgumentTypeError(
            f"custom metadata of a ledger must be a mapping, not {type(custom).__name__}"
        )
    for key, value in (custom or {}).items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise ArgumentTypeError(
                f"custom metadata of a ledger must map strings to bytes, not {key!r} to "
                f"{type(value).__name__}",
                remedy="Encode the value first: text with .encode()",
            )
        try:
            key.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the key {key!r} of custom metadata is not valid Unicode text"
            ) from None
