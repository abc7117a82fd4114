"""Options of `quire stream read` and `tail` that exclude each other."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from quire.cli.main import cli


@pytest.mark.parametrize("verb", ["read", "tail"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--json", "--key-separator", ":"], "--key-separator has no effect on JSON"),
        (["--format", "json", "--delimiter", r"\0"], "--delimiter has no effect on JSON"),
        (["--json", "--format", "hex"], "--json and --format hex exclude each other"),
    ],
)
def test_an_option_without_effect_is_refused(verb: str, words: list[str], told: str) -> None:
    """A reader that splits at the delimiter got all records as one."""
    done = CliRunner().invoke(
        cli, ["stream", verb, "s", "--metadata", "sqlite:////nowhere/c.db", *words]
    )
    assert (done.exit_code, told in done.stderr) == (2, True)


def test_an_option_with_its_default_value_is_accepted() -> None:
    words = ["stream", "read", "s", "--metadata", "sqlite:////nowhere/c.db", "--json"]
    done = CliRunner().invoke(cli, [*words, "--format", "json", "--delimiter", r"\n"])
    assert (done.exit_code, "JSON" in done.stderr) == (1, False)
