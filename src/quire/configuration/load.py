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
    """The URI of the metadata store; '': the file names none."""
    client: ClientConfig
    """The table `[client]`, with placement and TLS; what does not stand there is the default."""


def load_config(path: str | os.PathLike[str]) -> LoadedConfig:
    """The cluster and the limits of a client that the TOML file `path` names: the same file that
    commands and bookies take.

        loaded = quire.load_config("/etc/quire/quire.toml")
        client = await quire.connect(loaded.metadata, config=loaded.client)

    Only this file is read: neither the environment, nor the files that commands look for. All of it
    is checked, the tables of bookies too. UsageError says what is wrong and on which line, for
    a file that cannot be read as well.
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
