"""Ledgers that streams and objects need cannot be deleted by id.

The command line, the shell and HTTP refuse. A ledger that was deleted anyway is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import quire
from quire.blocking.background import call
from quire.cli.main import cli
from quire.errors import NoSuchLedgerError
from quire.testing.cluster import LocalCluster
from tests.support.processes.http import TOKEN, Http, url_in

NAMESPACE = "/streams"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    arguments = ["--http", "127.0.0.1:0", "--set", "min_free_bytes=0"]
    with LocalCluster(3, bookie_args=arguments, http_token=TOKEN) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[quire.blocking.Client]:
    with quire.blocking.connect(cluster.uri) as client:
        yield client


@pytest.fixture(scope="module")
def http(cluster: LocalCluster) -> Http:
    return Http(url_in(cluster.bookies[0].log_path), TOKEN)


@pytest.fixture
def segment(client: quire.blocking.Client, request: pytest.FixtureRequest) -> int:
    """The ledger of the one segment of a stream with the name of the test."""
    streams = client.namespace(NAMESPACE, create=True)
    with streams.open_writer(request.node.name, create=True) as writer:
        writer.append(b"one")
    return streams.segments(request.node.name)[0].ledger_id


def run(cluster: LocalCluster, *words: str) -> Result:
    return CliRunner().invoke(cli, list(words), env={"QUIRE_METADATA": cluster.uri})


def test_ledger_delete_refuses_an_owned_ledger(
    cluster: LocalCluster, client: quire.blocking.Client, segment: int
) -> None:
    plain = client.create_ledger()
    plain.close()
    both = [str(plain.ledger_id), str(segment)]
    for more in ((), ("--dry-run",)):
        refused = run(cluster, "ledger", "delete", *both, *more)
        assert refused.exit_code == 1
        assert (
            f"ledger {segment} belongs to stream test_ledger_delete_refuses_an_owned_ledger"
            in refused.stderr
        )
        assert "force" in refused.stderr
    for ledger_id in (plain.ledger_id, segment):
        client.ledger_metadata(ledger_id)  # none of them was deleted
    forced = run(cluster, "ledger", "delete", *both, "--force")
    assert forced.exit_code == 0, forced.output
    assert f"warning: ledger {segment} belongs to stream" in forced.stderr
    shown = run(
        cluster,
        "stream",
        "show",
        "test_ledger_delete_refuses_an_owned_ledger",
        "--namespace",
        NAMESPACE,
    )
    assert "lost       segment 1, 1 record from position" in shown.stdout
    assert f"ledger {segment} no longer exists" in shown.stdout
    explained = run(cluster, "explain")
    assert (
        "Stream test_ledger_delete_refuses_an_owned_ledger in namespace /streams needs a ledger"
        in explained.stdout
    )
    assert f"ledger {segment} (segment 1, 1 record" in explained.stdout
    alone = run(cluster, "explain", "ledger", str(segment))
    assert alone.exit_code == 1
    assert (
        f"ledger {segment} does not exist, and stream test_ledger_delete_refuses_an_owned_ledger"
        in alone.stderr
    )


def test_the_shell_refuses_to_delete_an_owned_ledger(
    cluster: LocalCluster, client: quire.blocking.Client, segment: int
) -> None:
    conf = cluster.bookies[0].directory.parent / "shell.conf"
    conf.write_text(f"metadataServiceUri={cluster.uri}\n")
    words = ("shell", "-conf", str(conf), "deleteledger", "-ledgerid", str(segment))
    refused = run(cluster, *words)
    assert refused.exit_code == 1
    assert (
        "belongs to stream test_the_shell_refuses_to_delete_an_owned_ledger in namespace /streams"
        in refused.stderr
    )
    client.ledger_metadata(segment)
    assert run(cluster, *words, "-force").exit_code == 0
    with pytest.raises(NoSuchLedgerError):
        client.ledger_metadata(segment)


def test_the_owner_is_named_in_lists_questions_and_dry_runs(
    cluster: LocalCluster, client: quire.blocking.Client, segment: int
) -> None:
    name = "test_the_owner_is_named_in_lists_questions_and_dry_runs"
    owner = f"stream {name} in namespace /streams"
    plain = client.create_ledger()
    plain.close()
    table = run(cluster, "ledger", "list", "--long", "--first", str(segment)).stdout.splitlines()
    assert table[0].split() == ["LEDGER", "STATE", "ENTRIES", "CREATED", "OWNER"]
    rows = {int(line.split()[0]): line.split(maxsplit=4) for line in table[1:]}
    assert (rows[segment][1], rows[segment][4]) == ("closed", owner)
    assert (rows[plain.ledger_id][1], rows[plain.ledger_id][4]) == ("closed", "-")
    ids = run(cluster, "ledger", "list", "--first", str(segment)).stdout.split()
    assert ids == [str(one) for one in rows]  # no table if the output is not a terminal
    listed = run(cluster, "ledger", "list", "--json", "--first", str(segment)).stdout
    [first, *_] = [json.loads(line) for line in listed.splitlines()]
    expected = {"kind": "stream", "name": name, "place": "/streams", "part": "", "doubt": ""}
    assert (first["ledger_id"], first["owners"]) == (segment, [expected])

    shown = run(cluster, "ledger", "show", str(segment)).stdout
    assert f"owner         {owner} (segment 1, 1 record from position" in shown
    assert "owner         none" in run(cluster, "ledger", "show", str(plain.ledger_id)).stdout
    [described] = json.loads(run(cluster, "ledger", "show", str(segment), "--json").stdout)[
        "owners"
    ]
    assert expected.items() <= {**described, "part": ""}.items()
    assert described["part"].startswith("segment 1, 1 record")
    explained = run(cluster, "explain", "ledger", str(segment)).stdout
    assert f"belongs to {owner} (segment 1" in explained
    recovered = run(cluster, "ledger", "recover", str(segment)).stderr
    assert f"ledger {segment} belongs to {owner}" in recovered

    planned = run(cluster, "ledger", "delete", str(segment), "--dry-run", "--force").stderr
    assert f"ledger {segment} (closed, 2 entries; of {owner} (segment 1" in planned
    free = run(cluster, "ledger", "delete", str(plain.ledger_id), "--dry-run").stderr
    assert f"ledger {plain.ledger_id} (closed, 0 entries; no owner) would be deleted" in free


def test_http_names_the_owners_in_lists(http: Http, segment: int) -> None:
    def owners() -> list[dict[str, Any]]:
        page = http.get(f"/api/v1/quire/ledgers?after={segment - 1}&limit=1")
        return page["ledgers"][0]["owners"]  # type: ignore[no-any-return]

    name = "test_http_names_the_owners_in_lists"
    expected = {"kind": "stream", "name": name, "place": NAMESPACE, "part": ""}
    explained = http.get(f"/api/v1/quire/ledgers/{segment}/explain")["metadata"]["owners"]
    for found in (owners(), http.get(f"/api/v1/quire/ledgers/{segment}")["owners"], explained):
        # A ledger that is younger than the last search is named by its own metadata, with a doubt,
        # and a search can end between two of these requests.
        [owner] = found
        assert owner.pop("doubt") in ("", "its record was not read yet")
        assert owner == expected


def test_http_refuses_to_delete_an_owned_ledger(
    http: Http, client: quire.blocking.Client, segment: int
) -> None:
    path = f"/api/v1/ledger/delete?ledger_id={segment}"
    status, body = http("DELETE", path)
    assert status == 409
    error: dict[str, Any] = body["error"]
    assert (error["kind"], error["outcome_known"]) == ("LedgerOwnedError", True)
    [owner] = error["owners"][str(segment)]
    assert owner.startswith(
        "stream test_http_refuses_to_delete_an_owned_ledger in namespace /streams "
        "(segment 1, 1 record"
    )
    assert http("DELETE", f"{path}&force=false")[0] == 409
    client.ledger_metadata(segment)
    assert http("DELETE", f"{path}&force=true") == (200, f"Deleted ledger: {segment}")
    with pytest.raises(NoSuchLedgerError):
        client.ledger_metadata(segment)
    status, body = http("GET", f"/api/v1/quire/ledgers/{segment}/explain")
    assert status == 404
    assert (
        "stream test_http_refuses_to_delete_an_owned_ledger in namespace /streams"
        in body["error"]["what"]
    )
    stream = http.get("/api/v1/quire/stream?name=test_http_refuses_to_delete_an_owned_ledger")
    assert [one["ledger_id"] for one in stream["lost"]] == [segment]


def test_the_ledger_of_an_object_is_protected_and_its_loss_reported(
    cluster: LocalCluster, client: quire.blocking.Client, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"x" * 100)
    assert run(cluster, "object", "put", str(data), "jobs/1").exit_code == 0
    shown = json.loads(run(cluster, "object", "show", "jobs/1", "--json").stdout)
    assert "lost" not in shown
    ledger_id = shown["ledger_id"]
    refused = run(cluster, "ledger", "delete", str(ledger_id))
    assert "belongs to object jobs/1 in bucket default (all of it, 100 bytes)" in refused.stderr
    assert run(cluster, "ledger", "delete", str(ledger_id), "--force").exit_code == 0
    assert json.loads(run(cluster, "object", "show", "jobs/1", "--json").stdout)["lost"] is True
    assert "lost      the ledger no longer exists" in (
        run(cluster, "object", "show", "jobs/1").stdout
    )
    lost = json.loads(run(cluster, "explain", "cluster", "--json").stdout)["lost_ledgers"]
    assert {"ledger": ledger_id, "kind": "object", "name": "jobs/1"}.items() <= (
        next(one for one in lost["ledgers"] if one["ledger"] == ledger_id).items()
    )


def test_a_deleted_ledger_is_restored_from_the_bookies(
    cluster: LocalCluster, client: quire.blocking.Client
) -> None:
    """It was said to be impossible, although the bookies keep the entries for a while."""
    streams = client.namespace(NAMESPACE, create=True)
    for number in range(3):
        with streams.open_writer("restored", create=True) as writer:
            writer.append(b"record %d" % number)
    like, lost, _ = (one.ledger_id for one in streams.segments("restored"))
    before = client.ledger_metadata(lost)
    restore = ("ledger", "recover", str(lost), "--like", str(like))
    assert "exists, so its metadata was not made again" in run(cluster, *restore).stderr
    assert run(cluster, "ledger", "delete", str(lost), "--force", "--yes").exit_code == 0

    refused = run(cluster, *restore)
    assert refused.exit_code == 1
    assert "Run quire cluster gc off, and repeat the command" in refused.stderr
    explained = run(cluster, "explain").stdout
    assert "do: First, so that bookies keep the entries: quire cluster gc off. To rest" in explained
    assert f"quire ledger recover {lost} --like" in explained
    with pytest.raises(NoSuchLedgerError):
        client.ledger_metadata(lost)

    assert run(cluster, "cluster", "gc", "off").exit_code == 0
    try:
        explained = run(cluster, "explain").stdout
        assert "quire cluster gc o" not in explained
        cookie = call(client.aio.metadata.write_cookie("gone:1", b"4\n", None))
        refused = run(cluster, *restore)
        call(client.aio.metadata.delete_cookie("gone:1", cookie))
        assert "may hold entries that no other one has: gone:1" in refused.stderr
        with pytest.raises(NoSuchLedgerError):
            client.ledger_metadata(lost)

        done = run(cluster, *restore)
        assert done.exit_code == 0, done.stderr
    finally:
        assert run(cluster, "cluster", "gc", "on").exit_code == 0
    after = client.ledger_metadata(lost)
    assert after.closed
    assert (after.last_entry_id, after.length) == (before.last_entry_id, before.length)
    assert (after.custom, after.digest) == (before.custom, before.digest)
    assert set(after.segments[0].ensemble) == set(before.segments[0].ensemble)
    assert after.ctoken not in (0, before.ctoken, client.ledger_metadata(like).ctoken)
    with streams.open_reader("restored") as reader:
        read = [bytes(record.payload) for record in reader]
    assert read == [b"record 0", b"record 1", b"record 2"]


def test_a_deleted_ledger_with_another_password_is_not_closed(
    cluster: LocalCluster, client: quire.blocking.Client
) -> None:
    """Recovery must not find it empty."""
    with client.create_ledger(password=b"secret") as other:
        other.append(b"one")
    with client.create_ledger() as plain:
        plain.append(b"two")
    client.delete_ledger(other.ledger_id)
    assert run(cluster, "cluster", "gc", "off").exit_code == 0
    try:
        done = run(
            cluster, "ledger", "recover", str(other.ledger_id), "--like", str(plain.ledger_id)
        )
        assert done.exit_code == 1, done.output
        assert not client.ledger_metadata(other.ledger_id).closed
    finally:
        assert run(cluster, "cluster", "gc", "on").exit_code == 0
