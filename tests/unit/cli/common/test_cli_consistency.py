"""Rules for all commands: JSON output, dry runs of destructive commands, help for every option.

Each exception has its reason here.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from quire.cli.common.groups import EXIT_BROKEN_PIPE, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE
from quire.cli.main import SHELLS, cli
from quire.cli.shell.shell import REFUSED, shell
from quire.cli.shell.verbs import VERBS
from tests.support.cli import ALL

DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference"
LEAVES = {
    " ".join(path): command
    for path, command in ALL.items()
    if not isinstance(command, click.Group) and path[0] != "shell"
}

WITHOUT_JSON = {
    "runs until it is stopped; its events are JSON": {
        "local", "bookie start", "autorecovery start", "http", "ui", "zookeeper",
    },
    "does something, and has nothing to tell but that it is done": {
        "autorecovery enable", "autorecovery disable", "autorecovery trigger",
        "bookie cookie create", "bookie cookie update", "bookie cookie delete",
        "cluster erase", "cluster gc off", "cluster gc on", "cluster skip-ids",
        "cluster locations set", "cluster locations remove", "cluster resume",
        "ledger delete", "dataset delete", "object delete", "stream delete", "stream end",
        "namespace create", "namespace set", "stream create", "stream set", "stream rename",
    },
    "its output is the data itself": {"object get", "bookie cookie generate", "completion"},
}  # fmt: skip
DESTROYS = re.compile(
    r"\b(delete|end|truncate|retain|erase|format|decommission|rebalance|rebuild-index|recover"
    r"|remove|rename|replace|accept)$"
)
WITHOUT_DRY_RUN = {
    "closes a ledger at what is acknowledged: nothing is lost or moved": {"ledger recover"},
    "writes ledgers of its own, and deletes these": {"bench recover"},
    "one line of a table, or one name, which can be set again": {
        "cluster locations remove", "stream rename",
    },
}  # fmt: skip
ASKS = re.compile(r"\b(delete|end|erase|format|gc accept)$")
SHELL_DESTROYS = {
    "bookieformat", "cookie_create", "cookie_delete", "cookie_update", "decommissionbookie",
    "deleteledger", "initnewcluster", "ledgermetadata", "metaformat", "nukeexistingcluster",
    "recover", "updateBookieInLedger", "updateledgers",
}  # fmt: skip


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def excepted(reasons: dict[str, set[str]]) -> set[str]:
    return {name for names in reasons.values() for name in names}


def test_every_command_that_prints_facts_has_json_output() -> None:
    lacking = {name for name, command in LEAVES.items() if "--json" not in options_of(command)}
    assert lacking - excepted(WITHOUT_JSON) == set()
    assert excepted(WITHOUT_JSON) & set(LEAVES) <= lacking, "a listed exception is not needed"


def test_every_command_that_deletes_or_moves_has_a_dry_run() -> None:
    destroying = {name for name in LEAVES if DESTROYS.search(name)}
    assert len(destroying) > 10
    lacking = {name for name in destroying if "--dry-run" not in options_of(LEAVES[name])}
    assert lacking == excepted(WITHOUT_DRY_RUN)
    for verb in SHELL_DESTROYS:
        command = shell.get_command(click.Context(shell), verb)
        assert command is not None
        assert "--dry-run" in options_of(command), verb


def test_every_command_that_asks_has_yes_and_dry_run() -> None:
    for name, command in LEAVES.items():
        taken = options_of(command)
        if ASKS.search(name):
            assert "--yes" in taken, name
        if "--yes" in taken:
            assert "--dry-run" in taken, name


@pytest.mark.parametrize("command", ALL.values(), ids=map(" ".join, ALL))
def test_every_option_has_a_help_text(command: click.Command) -> None:
    said = command.get_help(click.Context(command))
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            shown = parameter.get_help_record(click.Context(command))
            assert shown is not None
            assert shown[1].strip(), (parameter.opts, said)


def test_exit_statuses_are_documented_in_one_table() -> None:
    text = (DOCS / "commands.md").read_text()
    table = text.partition("**Exit status.**")[2].partition("\n\n`QUIRE_DEBUG")[0]
    documented = {int(status) for status in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert documented >= {0, EXIT_ERROR, EXIT_USAGE, EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, 74, 143}


def test_the_verbs_of_bookkeepers_shell_are_documented() -> None:
    text = (DOCS / "bookieshell.md").read_text()
    table = text.partition("## Verbs")[2]
    rows = set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE))
    assert rows == {*VERBS, *REFUSED}


@pytest.mark.parametrize("name", SHELLS)
def test_completion_prints_a_script_for_the_shell(name: str) -> None:
    result = CliRunner().invoke(cli, ["completion", name])
    assert result.exit_code == 0
    assert "_QUIRE_COMPLETE" in result.stdout
    assert f"{name}_complete" in result.stdout


def test_completion_knows_commands_and_options() -> None:
    for words, wanted in (
        ("quire bookie co", {"cookie", "conf"}),
        ("quire ledger delete --d", {"--dry-run"}),
        ("quire shell readl", {"readledger", "readlog", "readlogmetadata"}),
    ):
        environment = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")),
                       "_QUIRE_COMPLETE": "bash_complete"}  # fmt: skip
        result = CliRunner(env=environment).invoke(cli, [], prog_name="quire")
        assert {line.partition(",")[2] for line in result.stdout.split()} == wanted
