"""The configuration of the current command, from its options, the environment and one file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from quire.cli.common.groups import CONFIG_VARIABLE, FILE_SETTINGS, warn
from quire.configuration.fields import IN_MILLISECONDS, environment_name, keys
from quire.configuration.layers import (
    DEFAULT,
    Configuration,
    Layer,
    environment_layer,
    file_layer,
    merged,
    unknown,
)

FILE_NAME = "quire.toml"
SYSTEM_FILE = Path("/etc/quire") / FILE_NAME
BELOW = "quire.configuration.below"
"""The key in the `meta` of a command's context for a layer below the configuration file."""
_CACHE = "quire.configuration"
_TOLD = "quire.configuration.told"
"""The key in the `meta` of a command's context for the warnings that were printed already."""


def assignments_layer(option: str, table: str, settings: Iterable[str]) -> Layer:
    """Return the layer of an option NAME=VALUE for the keys of one table.

    Raises `click.UsageError` for an unknown key or a setting without a value.
    """
    layer = Layer()
    for setting in settings:
        last, equals, text = setting.partition("=")
        name = f"{table}.{last}"
        if not equals:
            known = sorted(key.removeprefix(f"{table}.") for key in keys() if _under(key, table))
            raise click.UsageError(
                f"{option} {setting} is not NAME=VALUE. The names are: {', '.join(known)}"
            )
        if name not in keys() and name not in IN_MILLISECONDS:
            raise click.UsageError(f"{option} {setting}: {unknown(f'{table}.', last)}")
        layer.give(name, text, f"{option} {setting}")
    return layer


def _under(name: str, table: str) -> bool:
    return name.startswith(f"{table}.")


def configuration_file(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the configuration file, or None if there is none.

    It is the file that `--config` names, else the one that QUIRE_CONFIG names (an empty value means
    no file), else the user's file if it exists, else the machine's if it exists. A file that is
    named need not exist.
    """
    context = click.get_current_context(silent=True)
    chosen = context.meta.get(CONFIG_VARIABLE) if context is not None else None
    if chosen is None:
        chosen = environment.get(CONFIG_VARIABLE)
    if chosen is not None:
        return Path(chosen) if chosen else None
    home = environment.get("XDG_CONFIG_HOME") or (environment.get("HOME", "") + "/.config")
    for path in (Path(home, "quire", FILE_NAME), SYSTEM_FILE):
        if path.is_absolute() and path.is_file():
            return path
    return None


def _base() -> list[Layer]:
    """Return the layers of configuration below the options of a command, the lowest first.

    They are the one under `BELOW`, the file's and the environment's. The last two are read once per
    command.
    """
    context = click.get_current_context(silent=True)
    found: list[Layer] | None = context.meta.get(_CACHE) if context is not None else None
    if found is None:
        path = configuration_file(os.environ)
        found = [_layer_of(path)] if path is not None else []
        found.append(environment_layer(os.environ))
        if context is not None:
            context.meta[_CACHE] = found
    below = context.meta.get(BELOW) if context is not None else None
    return found if below is None else [below, *found]


def _layer_of(path: Path) -> Layer:
    """Return the layer of a file.

    Raises `OSError`, whose message says so if an environment variable names the file.
    """
    try:
        return file_layer(path)
    except OSError as error:
        if os.environ.get(CONFIG_VARIABLE) == str(path):
            error.strerror = f"{error.strerror} ({CONFIG_VARIABLE} names this file)"
        raise


def configured(*options: Layer) -> Configuration:
    """Return the configuration of the current command. Its `options` override everything else.

    Warnings are printed once. Raises `click.UsageError` for an invalid value, and `OSError` for a
    file that cannot be read.
    """
    found = checked(merged([*_base(), *options]))
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta.setdefault(FILE_SETTINGS, {}).update(_file_settings(found))
    told = context.meta.setdefault(_TOLD, set()) if context is not None else set()
    for warning in found.warnings:
        if warning not in told:
            told.add(warning)
            warn(warning)
    return found


def _file_settings(found: Configuration) -> dict[str, str]:
    """Return the place that set each text of the configuration of TLS, by the text."""
    return {
        value: origin if name in origin else f"{name}, {origin}"
        for name, value in found.values.items()
        if isinstance(value, str) and value and ".tls." in name
        if (origin := found.origins[name]) != DEFAULT and not origin.startswith("--")
    }


def configured_log() -> tuple[str | None, str | None]:
    """Return the level and the format of the log that the file and the environment choose.

    Mistakes of a file are ignored here: a command that uses the configuration reports them. Raises
    `click.UsageError` for a mistake in the variables of the log.
    """
    try:
        found = merged(_base())
    except OSError:
        return None, None
    for problem in found.problems:
        if problem.startswith(environment_name("log.")):
            raise click.UsageError(problem)
    return found.log().level, found.log().format


def check_base() -> None:
    """Raise `click.UsageError` if the file or the environment has a mistake by itself.

    A mistake is an unknown key, for example. Commands that take no value from the configuration
    call this, so that a mistake is reported by every command.
    """
    checked(Configuration({}, {}, {}, [one for layer in _base() for one in layer.problems]))


def checked(found: Configuration) -> Configuration:
    """Return `found`, or raise `click.UsageError` with its first problem if it has any."""
    if found.problems:
        first, *others = found.problems
        more = f" (and {len(others)} more: `quire config check` lists them)" if others else ""
        raise click.UsageError(first + more)
    return found
