"""Names of streams, bookies and the like in commands that people copy into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from quire._runtime.units import some_of

COMMANDS_MAX = 10
"""The largest number of commands that `for_each` writes out."""


def command_with(command: str, name: str, options: str = "", *, then: str = "") -> str:
    """Return a command with a name as its argument, as it can be copied into a shell.

    A name may begin with a dash. It then comes last, after `--`, so that it is not taken for an
    option.

    Args:
        command: The command, such as "quire stream show".
        name: The name.
        options: The options, quoted for a shell where necessary.
        then: Further arguments after the name, quoted likewise.
    """
    words = [shlex.quote(name), then, options]
    if name.startswith("-"):
        words = [options, "--", shlex.quote(name), then]
    return " ".join(filter(None, [command, *words]))


def for_each(commands: Iterable[tuple[str, str]], where: str = "On the machine of") -> str:
    """Return a sentence with the command of each bookie, without the period of the last one.

    Bookies with the same command share a sentence. At most `COMMANDS_MAX` commands are written out,
    and the number of the bookies that are left follows. The dashboard shows each command in a box,
    which begins after a colon and ends with a sentence.

    Args:
        commands: Pairs of a bookie's id and its command, with the colon before the command.
        where: The words before the bookies that a command is for.
    """
    groups: dict[str, list[str]] = {}
    for bookie, command in commands:
        groups.setdefault(command, []).append(bookie)
    together = list(groups.items())
    said = [
        f"{where} {some_of(names, COMMANDS_MAX)}{command}"
        for command, names in together[:COMMANDS_MAX]
    ]
    others = dict.fromkeys(name for _, names in together[COMMANDS_MAX:] for name in names)
    return ". ".join([*said, *([f"For {some_of(others)}, do the same"] if others else [])])
