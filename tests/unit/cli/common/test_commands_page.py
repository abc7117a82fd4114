"""docs/reference/commands.md names every argument and option of every command."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.support.cli import ALL

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "commands.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = {
    " ".join(path): command
    for path, command in ALL.items()
    if path and path[0] not in ("pipeline", "shell") and not isinstance(command, click.Group)
}
"""The commands of this page. Other pages list those of `quire pipeline` and `quire shell`."""
SHORT = {"DIRECTORY": "DIR"}
"""The names of arguments that the page shortens."""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_on_the_page(name: str) -> None:
    for option in COMMANDS[name].params:
        if isinstance(option, click.Option) and not option.hidden:
            assert any(one in TEXT for one in option.opts), f"{name} {option.opts}"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_argument_is_beside_its_command(name: str) -> None:
    usages = re.findall(rf"`[^`\n]*\b{re.escape(name.split()[-1])}\b([^`\n]*)`", TEXT)
    for argument in COMMANDS[name].params:
        if isinstance(argument, click.Argument):
            shown = argument.make_metavar(click.Context(COMMANDS[name])).strip("[].")
            words = [SHORT.get(shown, shown)] if shown.isupper() else re.findall(r"\w+", shown)
            for word in words:
                assert any(word in usage for usage in usages), f"{name} {word}"
