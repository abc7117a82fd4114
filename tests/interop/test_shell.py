"""Apache's BookieShell against our bookies, with commands that operators use."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from quire.testing.cluster import BookieProcess
from tests.support.interop.apache_cluster import Cluster
from tests.support.interop.apache_java import ApacheClient
from tests.support.interop.checks import check_closed
from tests.support.interop.quire_side import QuireClient
from tests.support.interop.sides import PLAIN, Client, Shape, payloads

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("shell")) as cluster:
        cluster.add_quire(4)
        cluster.wait_ready()
        yield cluster


@pytest.fixture(scope="module")
def both(ours: Cluster) -> Iterator[tuple[Client, Client]]:
    clients: tuple[Client, Client] = (QuireClient(ours.uri), ApacheClient(ours.uri, "v3"))
    yield clients
    for client in clients:
        client.close()


def written(client: Client, sent: list[bytes], shape: Shape = PLAIN) -> int:
    writer = client.create(shape)
    writer.append_all(sent)
    writer.close()
    return writer.ledger_id


def test_listbookies_lists_quires_bookies(ours: Cluster) -> None:
    said = ours.shell("listbookies", "-rw")
    assert set(re.findall(r"BookieID:(\S+),", said)) == {bookie.id for bookie in ours.bookies}


def test_simpletest_writes_to_quires_bookies(ours: Cluster) -> None:
    said = ours.shell(
        "simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "50"
    )
    assert "50 entries written to ledger" in said


@pytest.mark.slow
def test_listbookies_lists_read_only_and_known_bookies(ours: Cluster) -> None:
    assert "No bookie exists!" in ours.shell("listbookies", "-ro")
    said = ours.shell("listbookies", "-a")
    assert set(re.findall(r"BookieID:(\S+),", said)) == {bookie.id for bookie in ours.bookies}


@pytest.mark.slow
def test_readledger_prints_ledgers_of_both_clients(
    ours: Cluster, both: tuple[Client, Client]
) -> None:
    for client in both:
        sent = [b"payload-%d" % number for number in range(20)]
        ledger_id = written(client, sent)
        said = ours.shell("readledger", "-ledgerid", str(ledger_id), "-msg")
        assert [line.encode() for line in re.findall(r"payload-\d+", said)] == sent
        # From each bookie by itself; the tool then leaves the last entry out.
        for bookie in client.describe(ledger_id).last_ensemble:
            said = ours.shell(
                "readledger", "-ledgerid", str(ledger_id), "-bookie", bookie, "-msg",
                "-firstentryid", "5", "-lastentryid", "9",
            )  # fmt: skip
            assert [line.encode() for line in re.findall(r"payload-\d+", said)] == sent[5:9]


@pytest.mark.slow
def test_readledger_recovers_ledgers_of_both_clients(
    ours: Cluster, both: tuple[Client, Client]
) -> None:
    for client in both:
        writer = client.create()
        sent = [b"payload-%d" % number for number in range(20)]
        writer.append_all(sent)
        writer.abandon()
        ours.shell("readledger", "-ledgerid", str(writer.ledger_id), "-force-recovery")
        check_closed(both, writer.ledger_id, sent, PLAIN)


@pytest.mark.slow
def test_ledgermetadata_and_listledgers_show_ledgers_of_both_clients(
    ours: Cluster, both: tuple[Client, Client]
) -> None:
    for client in both:
        sent = payloads(7)
        ledger_id = written(client, sent, Shape(digest="MAC"))
        said = ours.shell("ledgermetadata", "-ledgerid", str(ledger_id))
        assert "state=CLOSED" in said
        assert "lastEntryId=6" in said
        assert f"length={sum(map(len, sent))}" in said
        assert "digestType=HMAC" in said or "digestType=MAC" in said
        assert re.search(rf"\b{ledger_id}\b|ledgerID: {ledger_id}", ours.shell("listledgers"))
        ensemble = client.describe(ledger_id).last_ensemble
        said = ours.shell("listledgers", "-bookieid", ensemble[0])
        assert f"ledgerID: {ledger_id}" in said


@pytest.mark.slow
def test_deleteledger_deletes_ledgers_of_both_clients(
    ours: Cluster, both: tuple[Client, Client]
) -> None:
    for client in both:
        ledger_id = written(client, payloads(7))
        ours.shell("deleteledger", "-ledgerid", str(ledger_id), "-force")
        assert f"ledgerID: {ledger_id}\n" not in ours.shell("listledgers")


@pytest.mark.slow
def test_bookieinfo_shows_the_space_of_quires_bookies(ours: Cluster) -> None:
    """Free and total space of every bookie."""
    said = ours.shell("bookieinfo")
    for bookie in ours.bookies:
        assert bookie.id in said or f"{bookie.port}" in said
    assert "Free:" in said
    assert "Total:" in said


@pytest.mark.slow
def test_cookies_and_instance_id(ours: Cluster) -> None:
    said = ours.shell("whatisinstanceid")
    instance = re.findall(r"InstanceId: (\S+)", said)[0]
    for bookie in ours.bookies:
        cookie = ours.shell("cookie_get", bookie.id)
        assert f'bookieHost: "{bookie.id}"' in cookie
        assert f'instanceId: "{instance}"' in cookie


@pytest.mark.slow
def test_bookiesanity_succeeds_on_a_quire_bookie(ours: Cluster) -> None:
    """The tool creates a ledger on the bookie of its configuration, which is ours."""
    for bookie in ours.bookies[:2]:
        said = ours.shell_of(bookie, "bookiesanity", "-entries", "20")
        assert "Bookie sanity test succeeded" in said


@pytest.mark.slow
def test_recover_copies_the_entries_of_a_dead_quire_bookie(cluster: Cluster) -> None:
    """`recover` copies what a dead bookie held, from ours onto ours, and drops its cookie."""
    bookies = cluster.add_quire(4)
    cluster.wait_ready()
    clients: tuple[Client, Client] = (QuireClient(cluster.uri), ApacheClient(cluster.uri, "v3"))
    sent = payloads(300)
    shapes = (PLAIN, Shape(3, 2, 2, "MAC"), Shape(1, 1, 1))
    ledgers = {
        written(client, sent, shape): shape
        for shape in shapes[:2]
        for client in clients
        for _ in range(3)
    }
    dead: BookieProcess = bookies[0]
    dead.kill()
    cluster.wait_gone(dead)
    cluster.shell("recover", "-force", "-deleteCookie", dead.id)
    for ledger_id, shape in ledgers.items():
        described = check_closed(clients, ledger_id, sent, shape)
        assert dead.id not in described.last_ensemble
    assert dead.id not in cluster.children("cookies")
    for client in clients:
        client.close()


@pytest.mark.slow
def test_decommissionbookie_removes_a_quire_bookie(cluster: Cluster) -> None:
    """The operator's way of taking a bookie out: stop it, have autorecovery copy what it held, and
    see that nothing is left. Onto a bookie of Apache's and one of ours."""
    bookies = cluster.add_quire(3)
    cluster.wait_ready()
    clients: tuple[Client, Client] = (QuireClient(cluster.uri), ApacheClient(cluster.uri, "v3"))
    sent = payloads(100)
    ledgers = [written(client, sent) for client in clients for _ in range(3)]
    cluster.add_apache(1)
    cluster.add_quire(1)
    cluster.wait_ready()
    cluster.autorecovery()
    bookies[0].stop()
    cluster.wait_gone(bookies[0])
    cluster.shell("decommissionbookie", "-bookieid", bookies[0].id)
    for ledger_id in ledgers:
        described = check_closed(clients, ledger_id, sent, PLAIN)
        assert bookies[0].id not in described.last_ensemble
    assert bookies[0].id not in cluster.children("cookies")
    assert cluster.underreplicated() == []
    for client in clients:
        client.close()
