"""Commands in advice, with the options that say which cluster is meant and how to reach it.

Advice names commands such as `quire bookie recover ID`. If the cluster is named by `--metadata` and
not by `QUIRE_METADATA`, such a command fails when it is pasted. So the connection options of the
present command are added to each command that accepts them.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import click
from click.core import ParameterSource

from quire.cli.common.groups import DefaultGroup

CONNECTION = {
    "--metadata": "QUIRE_METADATA",
    "--tls-ca": "QUIRE_TLS_CA",
    "--tls-cert": "QUIRE_TLS_CERT",
    "--tls-key": "QUIRE_TLS_KEY",
    "--tls-key-password-file": "QUIRE_TLS_KEY_PASSWORD_FILE",
    "--tls-any-host-name": "QUIRE_TLS_ANY_HOST_NAME",
}
"""The connection options that are added to commands in advice, with the environment variable of
each. `quire bookie start` has other options with the same names, for its server."""

_COMMAND = re.compile(r"\bquire((?: [a-z][a-z-]*)+)")


def pasteable(text: str) -> str:
    """Return the text with the connection options of the present command in its commands.

    Options from the environment or the configuration are not added: they apply to a pasted command
    as well. A command that already has --metadata stays as it is.
    """
    context = click.get_current_context()
    given = _given(context)
    if not given:
        return text
    root = context.find_root().command

    def complete(found: re.Match[str]) -> str:
        # The text up to the next command has the other words of this one.
        if "--metadata" in _COMMAND.split(text[found.end() :], maxsplit=1)[0]:
            return found[0]
        words = found[1].split()
        command, used = _resolved(root, words, context)
        accepted = {(one.opts[0], one.envvar) for one in command.params}
        added = [
            word
            for name, words_given in given.items()
            if (name, CONNECTION[name]) in accepted
            for word in words_given
        ]
        return " ".join(["quire", *words[:used], *map(shlex.quote, added), *words[used:]])

    return _COMMAND.sub(complete, text)


def _given(context: click.Context) -> dict[str, list[str]]:
    """Return the words of the connection options that were typed, by the name of the option."""
    kept: dict[str, Any] = {}
    for one in context.meta.values():
        if isinstance(one, dict):
            kept |= one
    found = {}
    for parameter in context.command.params:
        name = parameter.opts[0]
        typed = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if name in CONNECTION and typed:
            value = context.params.get(str(parameter.name), kept.get(str(parameter.name)))
            found[name] = [name] if value is True else [name, str(value)]
    return found


def _resolved(
    command: click.Command, words: list[str], context: click.Context
) -> tuple[click.Command, int]:
    """Return the command that the first of `words` name, and how many words name it."""
    used = 0
    while isinstance(command, click.Group) and used < len(words):
        inner = command.get_command(context, words[used])
        if inner is None:
            break
        command, used = inner, used + 1
    if isinstance(command, DefaultGroup):
        command = command.get_command(context, command.default) or command
    return command, used
