"""Names in commands that people copy into a shell."""

from __future__ import annotations

import shlex

import click
import pytest

from quire._runtime.names.in_commands import COMMANDS_MAX, command_with, for_each
from quire.cli.main import cli


@pytest.mark.parametrize(
    ("command", "options", "then", "argument"),
    [
        ("quire stream show", "--namespace /team", "", "name"),
        ("quire stream read", "--namespace /team --on-gap skip", "", "name"),
        ("quire stream truncate", "--namespace /team --before 2:0:0", "", "name"),
        ("quire stream delete", "-n /team", "", "name"),
        ("quire stream create", "--partitions 3 --adopt", "", "name"),
        ("quire object show", "--bucket /team", "", "name"),
        ("quire bookie recover", "", "", "bookie"),
        ("quire bookie decommission", "--cancel", "", "bookie"),
        ("quire cluster locations set", "", "/RACK", "bookie"),
    ],
)
@pytest.mark.parametrize("name", ["-f", "--help", "a b", "plain"])
def test_a_copied_command_takes_any_name(
    command: str, options: str, then: str, argument: str, name: str
) -> None:
    """A name that begins with a dash was taken for an option."""
    words = shlex.split(command_with(command, name, options, then=then))
    found: click.Command = cli
    context = click.Context(found)
    words = words[1:]
    while isinstance(found, click.Group):
        inner = found.get_command(context, words[0])
        assert inner is not None
        found, words = inner, words[1:]
    parsed, _, _ = found.make_parser(context).parse_args(words)
    values = [value for key, value in parsed.items() if key not in ("namespace", "bucket")]
    assert name in values or (name,) in values, parsed


def test_an_ordinary_name_comes_before_the_options() -> None:
    assert command_with("quire stream show", "s", "-n /team") == "quire stream show s -n /team"
    assert command_with("quire x", "a b", then="c") == "quire x 'a b' c"


def test_bookies_with_the_same_command_share_a_sentence() -> None:
    assert for_each([("a", ": x /d"), ("b", ": y"), ("c", ": x /d")]) == (
        "On the machine of a, c: x /d. On the machine of b: y"
    )
    assert for_each([("a", ": x a")], "For") == "For a: x a"


def test_the_commands_of_many_bookies_are_cut_off() -> None:
    many = [(f"b{n}", f": x b{n}") for n in range(COMMANDS_MAX + 7)]
    *said, rest = for_each(many, "For").split(". ")
    assert said == [f"For b{n}: x b{n}" for n in range(COMMANDS_MAX)]
    assert rest == "For b10, b11, b12, b13, b14 and 2 more, do the same"
