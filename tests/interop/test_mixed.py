"""Ensembles of Apache's bookies and ours.

A bookie of either kind is killed while a client writes, and a client of the other side recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.interop import operations
from tests.support.interop.apache_cluster import ApacheBookie, Bookie, Cluster
from tests.support.interop.apache_java import ApacheClient
from tests.support.interop.checks import Pair, Stream, check_closed, wait_confirmed
from tests.support.interop.quire_side import QuireClient
from tests.support.interop.sides import PLAIN, Client, Code, Shape

pytestmark = pytest.mark.interop

CLIENTS: dict[str, Callable[[str], Client]] = {
    "apache-v2": lambda uri: ApacheClient(uri, "v2"),
    "apache-v3": lambda uri: ApacheClient(uri, "v3"),
    "quire": QuireClient,
}
KINDS = ("apache", "quire")
"""The kinds of bookies."""
OTHER = {"apache-v2": "quire", "apache-v3": "quire", "quire": "apache-v3"}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two of Apache's bookies, one with each storage, and two of ours."""
    with Cluster(tmp_path_factory.mktemp("mixed")) as cluster:
        cluster.add_apache(1, "sorted")
        cluster.add_apache(1, "db")
        cluster.add_quire(2)
        cluster.wait_ready()
        yield cluster


@pytest.fixture
def whole(mixed: Cluster) -> Cluster:
    """All four run, also after a test that has killed one."""
    for bookie in mixed.bookies:
        if not bookie.alive:
            mixed.wait_gone(bookie)
            bookie.start()
    mixed.wait_registered(*mixed.bookies)
    return mixed


@pytest.fixture(scope="module")
def clients(mixed: Cluster) -> Iterator[dict[str, Client]]:
    made = {name: make(mixed.uri) for name, make in CLIENTS.items()}
    yield made
    for client in made.values():
        client.close()


def member(cluster: Cluster, ensemble: tuple[str, ...], kind: str) -> Bookie:
    """One of an ensemble: every ensemble of three has both kinds."""
    found = [
        bookie
        for bookie in cluster.bookies
        if bookie.id in ensemble and isinstance(bookie, ApacheBookie) == (kind == "apache")
    ]
    return found[0]


IN_SHORT = (("apache-v3", "quire"), ("quire", "apache"))


@pytest.mark.parametrize(
    ("writing", "victim"),
    [
        pytest.param(
            writing, victim, marks=() if (writing, victim) in IN_SHORT else pytest.mark.slow
        )
        for writing in CLIENTS
        for victim in KINDS
    ],
)
def test_the_other_client_recovers_after_a_killed_bookie_and_writer(
    whole: Cluster, clients: dict[str, Client], writing: str, victim: str
) -> None:
    """The writer continues with another bookie and then dies. The other client recovers."""
    writer, other = clients[writing], clients[OTHER[writing]]
    stream = Stream(writer.create(PLAIN))
    ledger_id = stream.writer.ledger_id
    stream.reaches(200)
    killed = member(whole, writer.describe(ledger_id).last_ensemble, victim)
    killed.kill()
    stream.goes_on()
    acknowledged = stream.stop()
    stream.writer.abandon()
    reader = other.open(ledger_id, recover=True)
    assert reader.last_add_confirmed == acknowledged - 1
    reader.close()
    described = check_closed([writer, other], ledger_id, Stream.sent(acknowledged), PLAIN)
    assert len(described.segments) == 2
    assert killed.id in described.segments[0]
    assert killed.id not in described.last_ensemble


@pytest.mark.slow
@pytest.mark.parametrize("victim", KINDS)
@pytest.mark.parametrize("writing", CLIENTS)
def test_the_other_client_takes_over_during_an_ensemble_change(
    whole: Cluster, clients: dict[str, Client], writing: str, victim: str
) -> None:
    """The writer lives, and meets the recovery while it replaces the bookie."""
    writer, other = clients[writing], clients[OTHER[writing]]
    stream = Stream(writer.create(PLAIN))
    ledger_id = stream.writer.ledger_id
    stream.reaches(200)
    member(whole, writer.describe(ledger_id).last_ensemble, victim).kill()
    reader = other.open(ledger_id, recover=True)
    refused = {Code.LEDGER_FENCED, Code.LEDGER_CLOSED}
    assert stream.ends().code in refused
    last = reader.last_add_confirmed
    assert stream.acknowledged - 1 <= last < stream.acknowledged + Stream.BATCH
    reader.close()
    sent = Stream.sent(last + 1)
    check_closed([writer, other], ledger_id, sent, PLAIN, closed_by=other)


@pytest.mark.slow
@pytest.mark.parametrize("victim", KINDS)
@pytest.mark.parametrize("writing", ["apache-v3", "quire"])
def test_a_reader_follows_ensemble_changes(
    whole: Cluster, clients: dict[str, Client], writing: str, victim: str
) -> None:
    """A reader opened without recovery before the change reads entries before and after it."""
    writer, other = clients[writing], clients[OTHER[writing]]
    stream = Stream(writer.create(PLAIN))
    ledger_id = stream.writer.ledger_id
    stream.reaches(200)
    reader = other.open(ledger_id)
    before = reader.last_add_confirmed
    member(whole, writer.describe(ledger_id).last_ensemble, victim).kill()
    stream.goes_on()
    acknowledged = stream.stop()
    for _ in range(2):  # The second one shows that the first is acknowledged.
        stream.writer.append(Stream.payload(acknowledged))
        acknowledged += 1
    wait_confirmed(reader, acknowledged - 2)
    sent = Stream.sent(acknowledged)
    assert reader.read(0, acknowledged - 2) == sent[:-1]
    stream.writer.close()
    wait_confirmed(reader, acknowledged - 1)
    assert reader.read(before, acknowledged - 1) == sent[before:]
    reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("digest", ["CRC32C", "MAC"])
@pytest.mark.parametrize("writing", CLIENTS)
def test_ledgers_over_both_kinds_of_bookies(
    whole: Cluster, clients: dict[str, Client], writing: str, digest: str
) -> None:
    """Every write set of three has both kinds of bookies."""
    pair = Pair(clients[writing], clients[OTHER[writing]], lambda: CLIENTS[writing](whole.uri))
    for operation in (operations.write_and_read, operations.recover, operations.fence_under_load):
        operation(pair, Shape(4, 3, 2, digest))
    operations.read_while_open(pair)
    operations.delete(pair)
