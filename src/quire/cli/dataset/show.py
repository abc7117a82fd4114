"""The commands `quire dataset list` and `show`."""

from __future__ import annotations

import sys
from typing import Any

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail, say
from quire.cli.common.options import asynchronous, json_option, metadata_option
from quire.cli.common.output import print_json
from quire.cli.dataset.options import dataset_as_json, name_argument
from quire.errors import MetadataError, MetadataUnavailableError, NoSuchKeyError

LEDGERS_SHOWN_MAX = 20
"""The number of parts that `show` prints. With --json it prints all."""
TRANSACTIONS_SHOWN_MAX = 5
"""The number of transaction keys that `show` prints, the newest. With --json it prints all."""


# -- list -------------------------------------------------------------------------------------


@click.command("list")
@metadata_option
@click.argument("prefix", metavar="[PREFIX]", default="")
@json_option("Print one JSON object per dataset, as `quire dataset show --json` without its parts.")
@asynchronous
async def list_datasets(uri: str, prefix: str, as_json: bool) -> int:
    """List the names of datasets that begin with PREFIX, sorted, one per line.

    With --json, a dataset that cannot be read has the keys `name` and `error`, and the exit status
    is 1.
    """

    import quire

    damaged = 0
    async with quire.connect(uri) as client:
        names = [name for name in await client.datasets.list_datasets() if name.startswith(prefix)]
        if not as_json:
            sys.stdout.write("".join(f"{name}\n" for name in names))
            sys.stdout.flush()
            return 0
        for name in names:
            try:
                print_json(dataset_as_json(await client.datasets.read(name)))
            except NoSuchKeyError:
                continue  # deleted since it was listed
            except MetadataUnavailableError:
                raise
            except MetadataError as error:
                damaged += 1
                print_json({"name": name, "error": str(error)})
    if damaged:
        fail(f"{counted(damaged, 'dataset')} could not be read")
    return EXIT_ERROR if damaged else 0


# -- show -------------------------------------------------------------------------------------


@click.command()
@metadata_option
@name_argument()
@json_option("Print one JSON object, with all ledgers and transaction keys.")
@asynchronous
async def show(uri: str, name: str, as_json: bool) -> None:
    """Show the rows, columns, ledgers and transaction keys of a dataset, without reading its data.

    A dataset without columns has one row in each entry.
    """

    import quire
    from quire.client.datasets.as_json import part

    async with quire.connect(uri) as client:
        dataset = await client.datasets.read(name)
    described: dict[str, Any] = {
        **dataset_as_json(dataset),
        "parts": [
            {**part(one), **({"partition": dict(one.partition)} if one.partition else {})}
            for one in dataset.ledgers
        ],
        "transactions": dict(dataset.transactions),
    }
    if as_json:
        print_json(described)
        return
    click.echo("\n".join(_lines(described)))
    left = len(described["parts"]) - LEDGERS_SHOWN_MAX
    if left > 0:
        say(f"{left:,} more parts are not shown: use --json")


def _lines(described: dict[str, Any]) -> list[str]:
    newest = list(described["transactions"].items())[-TRANSACTIONS_SHOWN_MAX:]
    return [
        f"dataset      {described['name']}",
        f"rows         {described['rows']:,}",
        f"bytes        {described['bytes']:,}",
        f"ledgers      {described['ledgers']:,}",
        f"publication  {described['sequence']}",
        *(f"column       {name} {kind}" for name, kind in (described["columns"] or {}).items()),
        *(f"partition    by {name}" for name in described["partition_by"]),
        *(f"transaction  {key} in publication {sequence}" for key, sequence in newest),
        *(
            f"part         ledger {part['ledger_id']}, entries {part['first']} to {part['last']}, "
            f"{counted(part['rows'], 'row')}, {counted(part['bytes'], 'byte')}"
            + "".join(f", {name}={value}" for name, value in part.get("partition", {}).items())
            for part in described["parts"][:LEDGERS_SHOWN_MAX]
        ),
    ]
