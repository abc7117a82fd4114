"""The configuration file for programs: `quire.load_config`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quire._runtime.caller_warnings import warn_caller
from quire.config import ClientConfig
from quire.configuration.layers import file_layer, merged
from quire.errors import UsageError


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The part of a configuration file that a client uses."""

    metadata: str
    """The URI of the metadata store. It is empty if the file names none."""
    client: ClientConfig
    """The table `[client]`, including placement and TLS. Keys that are not in the file have their
    defaults."""


def load_config(path: str | os.PathLike[str]) -> LoadedConfig:
    """Read the configuration of a client from a TOML file.

    Commands and bookies use the same file.

        loaded = quire.load_config("/etc/quire/quire.toml")
        client = await quire.connect(loaded.metadata, config=loaded.client)

    Only this file is read: neither the environment nor the files that commands look for. The whole
    file is checked, including the tables of bookies.

    Args:
        path: The path of the file.

    Returns:
        The URI of the metadata store, and the limits of the client.

    Raises:
        UsageError: The file cannot be read or is not valid. The message names each error and its
            line.
    """
    try:
        found = merged([file_layer(Path(path))])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if found.problems:
        raise UsageError(
            "; ".join(found.problems),
            remedy=f"`quire config check {path}` says the same, a line for each",
        )
    for warning in found.warnings:
        warn_caller(warning, DeprecationWarning)
    return LoadedConfig(found.metadata, found.client())
