"""Apache's autorecovery copies a dead bookie's entries from and to Apache's bookies and ours.

Apache's auditor also feeds our workers, and our auditor feeds Apache's.
"""

from __future__ import annotations

import json
import signal

import pytest

from quire.codec.metadata.underreplication import LockHolder
from tests.support.interop.apache_cluster import LOOPBACK, Bookie, Cluster
from tests.support.interop.apache_java import ApacheClient
from tests.support.interop.checks import check_closed, refused
from tests.support.interop.quire_side import QuireClient
from tests.support.interop.sides import (
    DIGESTS,
    PLAIN,
    STRIPED,
    Client,
    Code,
    Reader,
    Shape,
    payloads,
)
from tests.support.processes.cli import Quire, Running
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SHAPES = (*(Shape(digest=digest) for digest in DIGESTS), STRIPED)
SENT = payloads(150)
ELECTION = "underreplication/auditorelection"


def launch(cluster: Cluster, kinds: str) -> list[Bookie]:
    """`a` is one of Apache's bookies, `q` one of ours."""
    added: list[Bookie] = []
    for kind in kinds:
        added += cluster.add_apache(1) if kind == "a" else cluster.add_quire(1)
    cluster.wait_ready()
    return added


def settled(cluster: Cluster, client: Client, ledgers: list[int], lost: Bookie) -> None:
    """Wait until no segment names the lost bookie, and nothing is marked."""

    def there() -> bool:
        for ledger_id in ledgers:
            segments = client.describe(ledger_id).segments.values()
            if any(lost.id in ensemble for ensemble in segments):
                return False
        return not cluster.underreplicated()

    wait_for(there, f"{ledgers} are copied away from {lost.id}", limit_s=180)


@pytest.mark.parametrize(
    ("first", "spare"),
    [("qqq", "q"), ("qaa", "q"), ("aqq", "q"), ("qqa", "a"), ("aaq", "q"), ("qaq", "a")],
    ids=lambda kinds: kinds,
)
def test_a_dead_bookie_is_replaced(cluster: Cluster, first: str, spare: str) -> None:
    """The first bookie dies, and the only one that can take its place joins: every entry can then
    be read from that one alone."""
    bookies = launch(cluster, first)
    clients: tuple[Client, Client] = (QuireClient(cluster.uri), ApacheClient(cluster.uri, "v3"))
    closed: dict[int, Shape] = {}
    for client in clients:
        for shape in SHAPES:
            writer = client.create(shape)
            writer.append_all(SENT)
            writer.close()
            closed[writer.ledger_id] = shape
    empty = clients[0].create()
    empty.close()
    # Opened before the change, and not notified of it.
    readers = [client.open(ledger_id, digest=shape.digest)
               for client in clients
               for ledger_id, shape in closed.items()]  # fmt: skip
    left_open = [client.create() for client in clients]
    for writer in left_open:
        writer.append_all(SENT)
    launch(cluster, spare)
    cluster.autorecovery()
    bookies[0].kill()
    cluster.wait_gone(bookies[0])
    ledgers = [*closed, *(writer.ledger_id for writer in left_open)]
    settled(cluster, clients[0], ledgers, bookies[0])
    for ledger_id, shape in closed.items():
        described = check_closed(clients, ledger_id, SENT, shape)
        assert cluster.bookies[-1].id in described.last_ensemble
    for writer in left_open:  # fenced, and recovered by the worker
        check_closed(clients, writer.ledger_id, SENT, PLAIN, closed_by=clients[1])
        refused(
            lambda writer=writer: writer.append(b"late"), Code.LEDGER_FENCED, Code.LEDGER_CLOSED
        )
    only_the_new_one(cluster, readers, clients, closed)
    for client in clients:
        client.close()


def only_the_new_one(
    cluster: Cluster,
    readers: list[Reader],
    clients: tuple[Client, Client],
    closed: dict[int, Shape],
) -> None:
    """Kill every other bookie, and read what had three copies from the new one."""
    for bookie in cluster.bookies[1:-1]:
        bookie.kill()
    whole = {ledger_id for ledger_id, shape in closed.items() if shape != STRIPED}
    for ledger_id in whole:
        for client in clients:
            reader = client.open(ledger_id, digest=closed[ledger_id].digest)
            assert reader.read(0, len(SENT) - 1) == SENT
            reader.close()
    for reader in readers:
        if reader.ledger_id in whole:
            assert reader.read(0, len(SENT) - 1) == SENT
        reader.close()


QUICK = ("--set", "backoff_s=0.3", "--set", "poll_s=0.3", "--set", "open_grace_s=1")


def closed_ledgers(client: Client, count: int) -> list[int]:
    ledgers = []
    for _ in range(count):
        writer = client.create()
        writer.append_all(SENT)
        writer.close()
        ledgers.append(writer.ledger_id)
    return ledgers


def stopped(process: Running) -> dict[str, int]:
    """End it; what it has counted."""
    done = process.end(signal.SIGTERM)
    assert done.status == 0, done.err
    counted: dict[str, int] = json.loads(done.err.splitlines()[-1])
    return counted


def test_quires_worker_repairs_what_apaches_auditor_marks(cluster: Cluster) -> None:
    """Apache's own worker heeds the locks of others; it ends before these are given back."""
    bookies = launch(cluster, "qaa")
    client = QuireClient(cluster.uri)
    ledgers = closed_ledgers(client, 6)
    launch(cluster, "q")
    locks = [f"/ledgers/underreplication/locks/urL{ledger:010d}" for ledger in ledgers]
    apaches = cluster.autorecovery()
    for lock in locks:
        cluster.kazoo.create(lock, LockHolder("tester", 1_750_000_000_000, "1/1").encode())
    bookies[0].kill()
    cluster.wait_gone(bookies[0])
    wait_for(lambda: sorted(cluster.underreplicated()) == sorted(ledgers), "all are marked")
    apaches.stop()
    for lock in locks:
        cluster.kazoo.delete(lock)
    with Quire(cluster.uri).start("autorecovery", "start", "--worker-only", *QUICK) as worker:
        settled(cluster, client, ledgers, bookies[0])
        counted = stopped(worker)
    assert counted["ledgers_marked"] == counted["elections_won"] == 0
    assert counted["ledgers_done"] == counted["fragments"] == len(ledgers)
    assert counted["entries_copied"] == len(SENT) * len(ledgers)
    readers = (client, ApacheClient(cluster.uri, "v3"))
    for ledger_id in ledgers:
        check_closed(readers, ledger_id, SENT, PLAIN)
    for reader in readers:
        reader.close()


def test_apaches_worker_repairs_what_quires_auditor_marks(cluster: Cluster) -> None:
    """Apache's tools know our auditor, and its auditor takes the office over when ours ends."""
    bookies = launch(cluster, "aqa")
    client = QuireClient(cluster.uri)
    ledgers = closed_ledgers(client, 4)
    launch(cluster, "a")
    ours = f"{LOOPBACK}:1"
    arguments = ("autorecovery", "start", "--auditor-only", "--name", ours, *QUICK)
    with Quire(cluster.uri).start(*arguments) as auditor:
        wait_for(lambda: bool(cluster.children(ELECTION)), "our auditor is elected")
        assert f"{LOOPBACK}" in cluster.shell("whoisauditor")
        cluster.autorecovery()
        wait_for(lambda: len(cluster.children(ELECTION)) == 2, "Apache's stands as well")
        bookies[0].kill()
        cluster.wait_gone(bookies[0])
        settled(cluster, client, ledgers, bookies[0])
        assert elected(cluster) == ours
        counted = stopped(auditor)
    assert counted["ledgers_marked"] >= len(ledgers)
    assert counted["ledgers_done"] == counted["bytes_copied"] == 0
    wait_for(lambda: elected(cluster) != ours, "Apache's takes the office over")
    readers = (client, ApacheClient(cluster.uri, "v3"))
    for ledger_id in ledgers:
        check_closed(readers, ledger_id, SENT, PLAIN)
    for reader in readers:
        reader.close()


def elected(cluster: Cluster) -> str:
    """Return what the winner of the election has written."""
    value, _ = cluster.kazoo.get(f"/ledgers/{ELECTION}")
    return LockHolder.decode(value).owner
