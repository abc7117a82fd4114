"""Apache's autorecovery copies what a dead bookie held: from and onto Apache's bookies and ours."""

from __future__ import annotations

import pytest

from tests.interop.apache_cluster import Bookie, Cluster
from tests.interop.apache_java import ApacheClient
from tests.interop.checks import check_closed, refused
from tests.interop.quire_side import QuireClient
from tests.interop.sides import (
    DIGESTS,
    PLAIN,
    STRIPED,
    Client,
    Code,
    Reader,
    Shape,
    eventually,
    payloads,
)

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SHAPES = (*(Shape(digest=digest) for digest in DIGESTS), STRIPED)
SENT = payloads(150)


def launch(cluster: Cluster, kinds: str) -> list[Bookie]:
    """`a` is one of Apache's bookies, `q` one of ours."""
    added: list[Bookie] = []
    for kind in kinds:
        added += cluster.add_apache(1) if kind == "a" else cluster.add_quire(1)
    cluster.wait_ready()
    return added


def settled(cluster: Cluster, client: Client, ledgers: list[int], lost: Bookie) -> None:
    """Until no segment of these names the lost bookie, and nothing is marked any more."""

    def there() -> bool:
        for ledger_id in ledgers:
            segments = client.describe(ledger_id).segments.values()
            if any(lost.id in ensemble for ensemble in segments):
                return False
        return not cluster.underreplicated()

    eventually(there, f"{ledgers} are copied away from {lost.id}", 180)


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
    # Opened before the change, and not told of it.
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
    """Every other bookie is killed: what had three copies is read from the new one."""
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
