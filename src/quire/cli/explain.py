"""The commands `quire explain cluster`, alias `quire explain`, and `quire explain ledger`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from quire._runtime.units import counted, does, duration_text
from quire._runtime.uris import without_credentials
from quire.cli.common.configuration import configured
from quire.cli.common.groups import EXIT_NO_METADATA, EXIT_SOON, EXIT_WRONG, fail, say
from quire.cli.common.logs import printable
from quire.cli.common.options import (
    Duration,
    asynchronous,
    checked,
    file_option,
    flag,
    json_option,
    ledger_argument,
    metadata_option,
    password_option,
)
from quire.cli.common.output import print_json
from quire.cli.common.pasting import pasteable
from quire.cli.common.tls import client_config, tls_options
from quire.cli.common.tokens import token_in
from quire.errors import MetadataUnavailableError, NoSuchLedgerError, QuireError, UsageError

if TYPE_CHECKING:
    from quire.client import Client
    from quire.http.views.cluster_view import ClusterState
    from quire.http.views.problems.problem import Problem
    from quire.http.watch.store_delay import StoreDelay
    from quire.replication.explain.explain import Explained, ReplicaReport, SegmentView
    from quire.streams.ownership.owners import OwnerClaim

CONNECT_TIMEOUT_S = 3.0
"""Seconds to connect to the metadata store. A slower store is reported as the problem."""
BOOKIE_TIMEOUT_S = 3
"""Seconds that a bookie may take to answer. A slower bookie counts as unreachable."""
ANSWERS_WAIT_S = 3.0
"""Seconds to wait until each bookie has answered, or has failed to answer. They must be more than a
bookie has to answer (`SPACE_TIMEOUT_S`), so that a bookie that does not answer is reported."""
WAIT_S = 2.0
"""Seconds to wait for observations other than the answers of bookies, such as the count of
under-replicated ledgers. Later answers are left out."""
ANSWER_TIMEOUT_S = 8.0
"""Seconds for the whole answer, without `--timeout`. This leaves two of ten seconds to start and to
end the process."""
SERVER_TIMEOUT_S = 5.0
"""Seconds to get the last known state from an HTTP server, which may itself wait for the store."""
ASK_SERVER = (
    "To print the last state that an HTTP server of the cluster knows, such as the dashboard: "
    "quire explain --server http://HOST:8080"
)
"""The advice if the metadata store does not answer and no server was asked."""
NOT_LOOKED_AT = (
    "note: this did not examine how often the metadata store was away in the last hour. To ask a "
    "server that watches it, such as the dashboard: quire explain --server http://HOST:8080"
)
"""The line after an answer without warnings if no server was asked."""
_TOKEN_FILE = "quire.explain.token_file"
"""The key of the token file in the values that belong to the command's context."""
SIGNS = {"bad": "✗ wrong", "warn": "! warning", "note": "note"}
RANGES_MAX = 5
"""The largest number of ranges of missing or damaged entries of one replica that are shown."""


# -- the client -------------------------------------------------------------------------------


@asynccontextmanager
async def explaining(
    uri: str, answer_timeout_s: float | None = None, delay: StoreDelay | None = None
) -> AsyncIterator[Client]:
    """Connect a client with short timeouts, and close it at the end of the context.

    `delay` measures how long the metadata store takes to answer.

    Raises MetadataUnavailableError if the metadata store does not answer soon, and QuireError if
    the context takes longer than `answer_timeout_s` (None means no limit).
    """
    from quire.client import Client
    from quire.http.views.problems.metadata_store import metadata_slow
    from quire.http.watch.reachability import store_remedy
    from quire.http.watch.store_delay import StoreDelay
    from quire.metadata import open_metadata
    from quire.metadata.uri import parse_uri

    delay = StoreDelay(time.monotonic) if delay is None else delay
    loop = asyncio.get_running_loop()
    deadline = None if answer_timeout_s is None else loop.time() + answer_timeout_s
    config = client_config(connect_timeout_s=BOOKIE_TIMEOUT_S, read_timeout_s=BOOKIE_TIMEOUT_S)
    try:
        store = await delay.of(open_metadata(uri, connect_timeout_s=CONNECT_TIMEOUT_S))
    except MetadataUnavailableError as error:
        if parse_uri(uri).servers:  # the error about a file says what to do
            error.remedy = store_remedy(uri)
        raise
    client = Client(store, config=config)
    first, whole = asyncio.timeout(CONNECT_TIMEOUT_S), asyncio.timeout_at(deadline)
    try:
        async with first:
            await delay.of(store.instance_id())
        async with whole:
            yield client
    except QuireError:
        raise
    except TimeoutError:
        if first.expired():
            raise MetadataUnavailableError(
                f"the metadata store {uri} did not answer within {CONNECT_TIMEOUT_S:g} s",
                remedy=store_remedy(uri),
            ) from None
        if whole.expired():
            slow = "".join(f". {one.what}" for one in metadata_slow(uri, delay.longest_s))
            raise QuireError(
                f"examining the cluster at {uri} took longer than {answer_timeout_s:g} s{slow}",
                remedy="The metadata store, the bookies or this machine may be busy. Give the "
                "command more time, for example `--timeout 1m`",
            ) from None
        raise
    finally:
        await client.close()


# -- the cluster ------------------------------------------------------------------------------


def _check_server(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            f"{without_credentials(url)!r} is not the URL of an HTTP server",
            remedy="Give it as http://HOST:PORT or https://HOST:PORT",
        )


def _keep_token_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_TOKEN_FILE] = value


@click.command("cluster")
@metadata_option
@tls_options
@flag(
    "--exit-code",
    "For cron and health checks: end with status 3 if the worst finding is a warning, with "
    "4 if something is wrong, and with 5 if the metadata store does not answer. Notes count as 0. "
    "Any other status means that the check itself failed.",
)
@click.option(
    "--server",
    metavar="URL",
    callback=checked(_check_server),
    help="An HTTP server of the cluster, such as http://127.0.0.1:8080. If the metadata store does "
    "not answer, print the last state that this server knows. If it answers, also report how often "
    "this server got no answer in the last hour.",
)
@file_option(
    "--http-bookies-token-file",
    "Send the token in this file when the command reads reports and metrics of bookies over HTTP, "
    "and to the server of --server. It is sent only on loopback, and over HTTPS if --tls-ca is "
    "given. [default: bookies_token_file in the [http] table of the configuration]",
    callback=_keep_token_file,
    expose_value=False,
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(1),
    default=ANSWER_TIMEOUT_S,
    show_default=True,
    help="How long to examine the cluster, in seconds or with a unit (1m). After that the command "
    "fails without findings. On a busy machine, give it more time.",
)
@json_option("Print one JSON object, the overview of the HTTP API.")
@asynchronous
async def explain_cluster(
    uri: str, exit_code: bool, server: str | None, timeout_s: float, as_json: bool
) -> int:
    """Explain what is wrong with the cluster, and what to do about it.

    The command examines bookies, certificates, disks, racks, the metadata store and autorecovery.
    For each problem it says what happened, what is at risk, what is being done automatically, and
    what you should type. Without --timeout it answers within ten seconds, even if servers do not
    respond. Nothing is changed.
    """
    from quire.http.views.cluster_view import ClusterView
    from quire.http.views.problems.metadata_store import unsteady
    from quire.http.watch.store_delay import StoreDelay

    delay = StoreDelay(time.monotonic)
    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(explaining(uri, timeout_s, delay))
            # With more time, more observations are complete.
            more = max(1.0, timeout_s / ANSWER_TIMEOUT_S)
            cluster = ClusterView(
                time.monotonic, await _fetch(stack), more * WAIT_S, more * ANSWERS_WAIT_S
            )
            stack.push_async_callback(cluster.close)
            view = await cluster.look(client, delay)
            if server is not None and not unsteady(view.outages.values()):
                view = await _with_outages(view, server, client.clock.now_ms())
    except MetadataUnavailableError as error:
        if server is not None:
            await _show_last_known(server, as_json)
        else:
            error.remedy = f"{error.remedy}. {pasteable(ASK_SERVER)}"
        if not exit_code:
            raise
        fail(f"{error}")
        return EXIT_NO_METADATA
    if as_json:
        print_json(view.as_json())
    else:
        lines = _cluster_lines(view, asked=server is not None)
        click.echo("\n".join(map(printable, lines)))
    return _status(view) if exit_code else 0


async def _with_outages(view: ClusterState, server: str, now_ms: int) -> ClusterState:
    """Add the problem of a metadata store that was away repeatedly, if an HTTP server saw that."""
    from quire.http.views.problems.metadata_store import SLOW, metadata_unsteady
    from quire.http.views.problems.problem import worst_first
    from quire.metadata.outages import Outage

    try:
        async with AsyncExitStack() as stack, asyncio.timeout(SERVER_TIMEOUT_S):
            fetch = await _fetch(stack)
            found = json.loads(await fetch(f"{server.rstrip('/')}/api/v1/quire/overview"))
            outages = [Outage(**one) for one in found["metadata_outages"]]
            more = metadata_unsteady(view.metadata, outages, now_ms)
    except Exception as error:  # noqa: BLE001 - the state of the cluster is known without it
        say(
            f"{without_credentials(server)} did not say how often the metadata store was away: "
            f"{str(error) or 'no answer'}"
        )
        return view
    # The outages of the last hour say more about the same store than one slow answer.
    known = [one for one in view.problems if not more or SLOW not in one.what]
    return replace(view, problems=worst_first([*more, *known]))


async def _show_last_known(server: str, as_json: bool) -> None:
    """Print the last state of the cluster that an HTTP server knows, or why it knows none."""
    from quire.http.views.problems.problem import Problem

    shown = without_credentials(server)
    try:
        async with AsyncExitStack() as stack, asyncio.timeout(SERVER_TIMEOUT_S):
            fetch = await _fetch(stack)
            found = json.loads(await fetch(f"{server.rstrip('/')}/api/v1/quire/overview"))
            # A newer server may tell more of a problem than this version knows.
            known = {one.name for one in fields(Problem)}
            problems = [
                Problem(**{name: value for name, value in one.items() if name in known})
                for one in found["problems"]
            ]
            count, since_ms = found["bookies"], found["old_since_ms"]
            age_s = 0.0 if since_ms is None else max(0.0, time.time() - since_ms / 1000)
            lines = [
                f"the last state that {shown} knows, of {duration_text(age_s)} ago:",
                _counts(count, found.get("silent_bookies", 0)),
            ]
            for one in problems:
                lines += _problem(one)
    except Exception as error:  # noqa: BLE001 - the store is the news, not this server
        say(f"the last known state cannot be read from {shown}: {str(error) or 'no answer'}")
        return
    if as_json:
        print_json(found)
        return
    click.echo("\n".join(map(printable, lines)))


def _status(view: ClusterState) -> int:
    """Return the exit status for the worst finding."""
    found = {one.severity for one in view.problems}
    return EXIT_WRONG if "bad" in found else EXIT_SOON if "warn" in found else 0


async def _fetch(stack: AsyncExitStack) -> Any:
    """Return a function that reads the metrics of a bookie, with the token for bookies.

    Without the extra `http`, it reads nothing. Raises `click.UsageError` for a file that contains
    no token, and TlsConfigError.
    """
    from quire.http.server.fetch import fetcher, proves
    from quire.net.tls import client_context

    file = click.get_current_context().meta.get(_TOKEN_FILE)
    token = token_in(file or configured().values["http.bookies_token_file"])
    tls = client_config().tls
    context = client_context(tls) if tls is not None else None
    asking = fetcher(token, (lambda: context) if context else None, proven=proves(tls))
    try:
        return await stack.enter_async_context(asking)
    except ImportError:
        return _nothing


async def _nothing(url: str) -> str:
    return ""


def _cluster_lines(view: ClusterState, *, asked: bool = False) -> list[str]:
    """Return the lines of the answer. `asked` says that an HTTP server was asked about outages."""
    from quire.http.views.problems.metadata_store import servers_of

    found = view.autorecovery
    lines = [
        f"cluster {view.instance_id}, metadata {view.metadata}",
        f"{_counts(view.count(), view.silent())}; autorecovery is "
        f"{'on' if found['enabled'] else 'off'}, auditor: {found['auditor'] or 'none'}",
    ]
    for one in view.problems:
        lines += _problem(one)
    if not view.problems:
        lines.append("✓ No problems were found")
    wrong = any(one.severity != "note" for one in view.problems)
    if not wrong and not asked and servers_of(view.metadata):
        lines.append(pasteable(NOT_LOOKED_AT))
    if view.lost is None or not view.lost.whole:
        looked_at = 0 if view.lost is None else view.lost.records
        lines.append(
            "note: the search for missing ledgers has not covered all streams, objects and "
            f"datasets yet ({looked_at} so far)"
        )
    lines += [f"running: {one.sentence()}" for one in view.running]
    return lines


def _counts(count: Mapping[str, int], silent: int) -> str:
    """Return the number of bookies in each state, and how many registered ones do not answer."""
    text = "bookies: " + ", ".join(f"{number} {state}" for state, number in count.items())
    return (
        f"{text}; {counted(silent, 'registered bookie')} {does(silent)} not answer"
        if silent
        else text
    )


def _problem(one: Problem) -> list[str]:
    # A newer server may have a severity that this version does not know.
    sign = SIGNS.get(one.severity, one.severity)
    lines = [f"{sign}: {one.what}{':' if one.items else ''}"]
    lines += [f"    - {item}" for item in one.items]
    for name, text in (("at risk", one.risk), ("being done", one.doing), ("do", one.next)):
        if text:
            lines.append(f"    {name}: {pasteable(text)}")
    return lines


# -- a ledger ---------------------------------------------------------------------------------


@click.command("ledger")
@metadata_option
@ledger_argument
@flag("--deep", "Read every entry of every replica, and compare the replicas.")
@password_option
@tls_options
@json_option("Print one JSON object.")
@asynchronous
async def explain_one_ledger(
    uri: str, ledger_id: int, deep: bool, password: bytes, as_json: bool
) -> None:
    """Explain where the replicas of a ledger are, and which are missing.

    The command asks every bookie of the ledger. The last line says what is wrong, why it is not
    repaired yet, and what to type. Nothing is changed.
    """
    from quire.cli.ledger.manage import owners_of
    from quire.replication.explain.explain import explain_ledger
    from quire.streams.ownership.owner_index import owners_as_json
    from quire.streams.ownership.owners import missed

    async with explaining(uri) as client:
        try:
            found = await explain_ledger(client, ledger_id, deep=deep, password=password)
        except NoSuchLedgerError as error:
            raise await missed(client, error, ledger_id) from None
        owners = await owners_of(client, ledger_id)
    if as_json:
        print_json({**asdict(found), "owners": owners_as_json(owners)})
    else:
        click.echo("\n".join(_ledger_lines(found, owners)))


def _ledger_lines(found: Explained, owners: Sequence[OwnerClaim] = ()) -> list[str]:
    ensemble, write_quorum, ack_quorum = found.quorums
    state = {
        "OPEN": "open: it is being written, or its writer died or hangs",
        "IN_RECOVERY": "in recovery: a client began to recover it and has not finished",
        "CLOSED": "closed",
    }[found.state]
    lines = [
        f"ledger {found.ledger}: {state}; "
        f"{_last_entry(found)}; "
        f"ensemble {ensemble}, write quorum {write_quorum}, ack quorum {ack_quorum}"
    ]
    lines += [f"belongs to {claim}" for claim in owners]
    width = max(len(one.bookie) for segment in found.segments for one in segment.replicas)
    for segment in found.segments:
        lines.append(_segment(segment))
        lines += [f"  {_replica(one, width)}" for one in segment.replicas]
    if found.mark is not None:
        age_s = found.mark.age_s
        changed = "" if age_s is None else f" (mark last changed {duration_text(age_s)} ago)"
        named = f", naming {', '.join(found.mark.replicas)}" if found.mark.replicas else ""
        lines.append(f"marked for repair{changed}{named}: {found.mark.sentence()}")
    text = found.verdict.sentence
    if found.verdict.command:
        text += f". Type: {found.verdict.command}"
    lines.append(pasteable(text))
    if not found.deep and not found.verdict.command:
        deep = f"To read every entry: quire explain ledger {found.ledger} --deep"
        lines.append(pasteable(deep))
    return lines


def _last_entry(found: Explained) -> str:
    """Return the last entry in words. The last entries of an open ledger are not known."""
    if found.state == "CLOSED":
        return "no entries" if found.last_entry < 0 else f"last entry {found.last_entry}"
    if found.last_entry < 0:
        return "no entry is known to be acknowledged yet"
    return f"acknowledged up to entry {found.last_entry} or further"


def _segment(segment: SegmentView) -> str:
    if segment.last < segment.first:
        known = "without entries" if segment.closed else "without acknowledged entries so far"
        entries = f"from entry {segment.first}, {known}"
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
