"""Checks of a client's configuration and of a new ledger that need no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

from quire.client.cluster.placement import make_policy
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.config import ClientConfig, PlacementConfig
from quire.core.placement.values import parse_location
from quire.errors import UsageError
from quire.net.tls import client_context

METADATA_VERSIONS = (2, 3)


def check_config(config: ClientConfig) -> None:
    """Check the configuration of a client.

    Raises:
        UsageError: A number is impossible, or the placement policy does not exist.
        TlsConfigError: A file cannot be used.
    """
    _check_numbers(config, "")
    _check_numbers(config.placement, "placement.")
    check_format(config.ledger_metadata_version)
    make_policy(config.placement)
    if config.placement.own_location:
        parse_location(config.placement.own_location)
    if config.tls is not None:
        client_context(config.tls)


def check_format(version: int) -> None:
    """Raise UsageError unless new ledgers can be stored in this format."""
    if version not in METADATA_VERSIONS:
        raise UsageError(
            f"new ledgers cannot be stored in metadata format {version}: "
            "ledger_metadata_version is 2 or 3"
        )


def check_new_ledger(
    password: bytes, custom: Mapping[str, bytes] | None, ledger_id: int | None
) -> None:
    """Raise UsageError for values that the metadata of a ledger cannot hold."""
    if not isinstance(password, bytes):
        raise UsageError(
            f"a password must be bytes, not {type(password).__name__}",
            remedy="Encode it first: text with .encode()",
        )
    if ledger_id is not None and not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise UsageError(f"{ledger_id} is not a ledger id: use 0 to 2**63-1")
    for key, value in (custom or {}).items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise UsageError(
                f"custom metadata maps strings to bytes, not {key!r} to {type(value).__name__}",
                remedy="Encode the value first: text with .encode()",
            )
        try:
            key.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the key {key!r} of custom metadata is not Unicode text") from None


def _check_numbers(config: ClientConfig | PlacementConfig, table: str) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and (value < 0 or not math.isfinite(value)):
            raise UsageError(f"{table}{field.name} of a client cannot be {value}")
