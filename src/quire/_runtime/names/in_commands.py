"""Names of streams, bookies and the like in commands that people copy into a shell."""

from __future__ import annotations

import shlex


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
