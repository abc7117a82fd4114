"""Commands in advice get the connection options that were typed."""

from __future__ import annotations

from collections.abc import Sequence

import click
import pytest
from click.testing import CliRunner

from quire.cli.common.options import metadata_option
from quire.cli.common.pasting import pasteable
from quire.cli.common.tls import tls_options
from quire.cli.main import cli

URI = "sqlite:////tmp/a b.db"


def pasted(text: str, arguments: Sequence[str], **variables: str) -> str:
    """Return the text as a command with these arguments prints it."""

    @click.command()
    @metadata_option
    @tls_options
    def show(uri: str) -> None:
        click.echo(pasteable(text))

    class WithShow(click.Group):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            return show if cmd_name == "show" else cli.get_command(ctx, cmd_name)

    environment = {"QUIRE_METADATA": None, "QUIRE_TLS_CA": None, **variables}
    done = CliRunner().invoke(WithShow("quire"), ["show", *arguments], env=environment)
    assert done.exit_code == 0, done.output
    return done.output.rstrip("\n")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "If it is lost for good: quire bookie recover 10.0.0.1:3181",
            "If it is lost for good: quire bookie recover --metadata 'URI' 10.0.0.1:3181",
        ),
        (
            "Run quire cluster gc status. If the store was restored, run quire cluster gc accept",
            "Run quire cluster gc status --metadata 'URI'. If the store was restored, run quire "
            "cluster gc accept --metadata 'URI'",
        ),
        (
            "waits (quire autorecovery trigger ends the wait)",
            "waits (quire autorecovery trigger --metadata 'URI' ends the wait)",
        ),
        ("quire explain ledger 7 --deep", "quire explain ledger --metadata 'URI' 7 --deep"),
        ("Type quire explain", "Type quire explain --metadata 'URI'"),
        (
            "quire bookie start --dir /d --metadata other",
            "quire bookie start --dir /d --metadata other",
        ),
        ("quire completion bash has no cluster", "quire completion bash has no cluster"),
        ("nothing that quire runs, and no command", "nothing that quire runs, and no command"),
    ],
)  # fmt: skip
def test_the_cluster_is_named_in_commands_that_need_it(text: str, wanted: str) -> None:
    assert pasted(text, ["--metadata", URI]) == wanted.replace("URI", URI)


def test_nothing_is_added_if_the_environment_names_the_cluster() -> None:
    text = "quire bookie recover 10.0.0.1:3181"
    assert pasted(text, [], QUIRE_METADATA=URI) == text


def test_tls_options_are_for_clients_and_not_for_the_server_of_a_bookie() -> None:
    text = "Start it again: quire bookie start --dir /d. If it is lost: quire bookie recover a"
    assert pasted(text, ["--tls-ca", "ca.pem", "--tls-any-host-name"], QUIRE_METADATA=URI) == (
        "Start it again: quire bookie start --dir /d. If it is lost: quire bookie recover "
        "--tls-ca ca.pem --tls-any-host-name a"
    )
