"""`quire.load_config`, which reads a configuration file for a program."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quire._runtime.names.caller_warnings import warn_caller
from quire._runtime.shortages import reason_of
from quire.config import ClientConfig
from quire.configuration.layers import file_layer, merged
from quire.errors import ArgumentTypeError, UsageError


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The part of a configuration file that a client uses."""

    metadata: str
    """The URI of the metadata store, or '' if the file has none."""
    client: ClientConfig
    """The table `[client]`, with placement and TLS. Keys that the file does not set have their
    defaults."""


def load_config(path: str | os.PathLike[str]) -> LoadedConfig:
    """Read the cluster and the client's settings from a TOML file.

    It is the same file that commands and bookies use:

        loaded = quire.load_config("/etc/quire/quire.toml")
        client = await quire.connect(loaded.metadata, config=loaded.client)

    Only this file is read. Environment variables and the files that commands look for are not.
    The whole file is checked, including the tables that a client does not use.

    Args:
        path: The TOML file.

    Returns:
        The URI of the metadata store, and the configuration of a client. A key whose name is
        deprecated emits a DeprecationWarning.

    Raises:
        UsageError: The file cannot be read or has mistakes. The message names each mistake, with
            its line in the file if that is known.
        ArgumentTypeError: `path` is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"path must be the path of a file, not {type(path).__name__}")
    try:
        found = merged([file_layer(Path(path))])
    except OSError as error:
        raise UsageError(
            f"the configuration file {path} cannot be read: {reason_of(error)}",
            remedy="Check the path and its permissions",
        ) from None
    if found.problems:
        raise UsageError(
            "; ".join(found.problems),
            remedy=f"`quire config check {path}` lists the problems, one a line",
        )
    for warning in found.warnings:
        warn_caller(warning, DeprecationWarning)
    return LoadedConfig(found.metadata, found.client())
