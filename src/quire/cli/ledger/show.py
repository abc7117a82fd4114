"""`quire ledger show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.options import json_option, ledger_argument, metadata_option, run_async
from quire.cli.common.output import ledger_as_json, print_json

if TYPE_CHECKING:
    from quire.codec.metadata.ledger_metadata import LedgerMetadata


@click.command()
@metadata_option
@ledger_argument
@json_option("One JSON object.")
def show(uri: str, ledger_id: int, as_json: bool) -> None:
    """Show what the metadata says of a ledger: state, length, quorums, segments and bookies."""
    described = ledger_as_json(ledger_id, run_async(_metadata(uri, ledger_id)))
    if as_json:
        print_json(described)
    else:
        click.echo("\n".join(_lines(described)))


async def _metadata(uri: str, ledger_id: int) -> LedgerMetadata:
    import quire

    async with quire.connect(uri) as client:
        return await client.ledger_metadata(ledger_id)


def _lines(described: dict[str, Any]) -> list[str]:
    def known(value: Any) -> Any:
        return "not known" if value is None else value

    lines = [
        f"ledger        {described['ledger_id']}",
        f"state         {described['state']}",
        f"last entry    {known(described['last_entry_id'])}",
        f"length        {known(described['length'])}",
        f"ensemble      {described['ensemble']}",
        f"write quorum  {described['write_quorum']}",
        f"ack quorum    {described['ack_quorum']}",
        f"digest        {known(described['digest'])}",
        f"created       {known(described['ctime'])}",
    ]
    for key, value in (described["custom"] | described.get("custom_base64", {})).items():
        lines.append(f"custom        {key}={value}")
    for segment in described["segments"]:
        last = segment["last_entry_id"]
        entries = f"{segment['first_entry_id']}..{'' if last is None else last}"
        lines.append(f"segment       {entries} {' '.join(segment['bookies'])}")
    return lines
