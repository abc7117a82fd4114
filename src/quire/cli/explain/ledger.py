"""`quire explain ledger`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quire._runtime.units import counted
from quire.cli.common.options import (
    json_option,
    ledger_argument,
    metadata_option,
    password_option,
    run_async,
)
from quire.cli.common.output import print_json
from quire.cli.common.tls import tls_options
from quire.cli.explain.client import explaining

if TYPE_CHECKING:
    from quire.replication.explain.explain import Explained, ReplicaReport, SegmentView

RANGES_MAX = 5
"""Of one replica, in words."""


@click.command("ledger")
@metadata_option
@ledger_argument
@click.option("--deep", is_flag=True, help="Read every entry of every replica, and compare.")
@password_option
@tls_options
@json_option("One JSON object.")
def explain(uri: str, ledger_id: int, deep: bool, password: bytes, as_json: bool) -> None:
    """Say where the replicas of a ledger are, what is missing, and why it is not repaired yet.

    Every bookie is asked. The last line says what is wrong and what to type. Nothing is changed.
    """
    found = run_async(_explain(uri, ledger_id, deep, password))
    if as_json:
        print_json(found.as_json())
    else:
        click.echo("\n".join(_lines(found)))


async def _explain(uri: str, ledger_id: int, deep: bool, password: bytes) -> Explained:
    from quire.errors import NoSuchLedgerError
    from quire.replication.explain.explain import explain_ledger
    from quire.streams.ownership.owners import missed

    async with explaining(uri) as client:
        try:
            return await explain_ledger(client, ledger_id, deep=deep, password=password)
        except NoSuchLedgerError as error:
            raise await missed(client, error, ledger_id) from None


def _lines(found: Explained) -> list[str]:
    ensemble, write_quorum, ack_quorum = found.quorums
    state = {
        "OPEN": "open: it is written, or its writer died",
        "IN_RECOVERY": "a recovery was begun and has not ended",
        "CLOSED": "closed",
    }[found.state]
    lines = [
        f"ledger {found.ledger}: {state}; entries up to {found.last_entry}; "
        f"{counted(ensemble, 'bookie')}, {counted(write_quorum, 'copy')}, "
        f"{ack_quorum} to acknowledge"
    ]
    width = max(len(one.bookie) for segment in found.segments for one in segment.replicas)
    for segment in found.segments:
        lines.append(_segment(segment))
        lines += [f"  {_replica(one, width)}" for one in segment.replicas]
    if found.mark is not None:
        since = "" if found.mark.age_s is None else f" for {found.mark.age_s:.0f} s"
        named = f", naming {', '.join(found.mark.replicas)}" if found.mark.replicas else ""
        lines.append(f"marked for repair{since}{named}: {found.mark.sentence()}")
    text = found.verdict.sentence
    if found.verdict.command:
        text += f": {found.verdict.command}"
    lines.append(text)
    return lines


def _segment(segment: SegmentView) -> str:
    if segment.last < segment.first:
        entries = f"from {segment.first}, without entries"
    else:
        entries = f"{segment.first}..{segment.last}"
    return f"segment {entries}{'' if segment.closed else ', still open'}"


def _replica(one: ReplicaReport, width: int) -> str:
    where = "not registered" if one.host is None else f"{one.registered} on {one.host}"
    text = f"{one.bookie:{width}}  {one.state:11}  {counted(one.entries, 'entry')}  {where}"
    ranges = [
        f"{first}..{last} {kind}" + (f" ({detail})" if detail else "")
        for first, last, kind, detail in one.bad[:RANGES_MAX]
    ]
    if len(one.bad) > RANGES_MAX:
        ranges.append(f"and {len(one.bad) - RANGES_MAX} more")
    return text + (f"  {'; '.join(ranges)}" if ranges else "")
