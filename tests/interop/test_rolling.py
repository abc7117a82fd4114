"""A cluster of Apache's bookies becomes one of ours, bookie by bookie, and back.

A Java writer and a Java reader notice nothing. As an operator would do it, the new bookie joins
under its own id. Then the old one is stopped, its entries are copied, and its cookie is removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.support.interop.apache_cluster import Bookie, Cluster
from tests.support.interop.apache_java import ApacheClient
from tests.support.interop.checks import POLL_MS, Stream, check_closed
from tests.support.interop.quire_side import QuireClient
from tests.support.interop.sides import PLAIN, STRIPED, Client, Reader, Shape, payloads
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PAUSE_S = 0.05
"""Seconds between two batches of the writer."""
GRACE_MS = 15_000
"""Milliseconds for the writer to replace a bookie before autorecovery takes over the ledger."""
LOOK_BACK = 10


class Follower:
    """Tails a ledger in its own thread, and also reads old entries again."""

    def __init__(self, reader: Reader) -> None:
        self.seen = 0
        self.error: BaseException | None = None
        self._reader = reader
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                payload = self._reader.tail(self.seen, POLL_MS)
                if payload is None:
                    continue
                assert payload == Stream.payload(self.seen)
                self.seen += 1
                first = self.seen // 2
                last = min(first + LOOK_BACK, self.seen) - 1
                if self.seen % LOOK_BACK == 0:
                    again = self._reader.read(first, last)
                    assert again == [Stream.payload(n) for n in range(first, last + 1)]
        except BaseException as error:  # noqa: BLE001 - raised by `reaches` and `stop`
            self.error = error

    def reaches(self, count: int) -> None:
        def there() -> bool:
            if self.error is not None:
                raise self.error
            return self.seen >= count

        wait_for(there, f"the reader sees {count} entries", limit_s=120)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


def written(client: Client, sent: list[bytes], shape: Shape) -> int:
    writer = client.create(shape)
    writer.append_all(sent)
    writer.close()
    return writer.ledger_id


def decommission(cluster: Cluster, bookie: Bookie) -> None:
    """Remove a bookie while autorecovery copies its entries."""
    cluster.shell("decommissionbookie", "-bookieid", bookie.id)


def recover(cluster: Cluster, bookie: Bookie) -> None:
    """Remove a bookie and copy its entries with a command."""
    cluster.shell("recover", "-force", "-deleteCookie", bookie.id)


def replace(
    cluster: Cluster,
    old: list[Bookie],
    add: Callable[[], object],
    drain: Callable[[Cluster, Bookie], None],
    stream: Stream,
    follower: Follower,
    client: Client,
) -> None:
    for bookie in old:
        add()
        cluster.wait_ready()
        stream.goes_on()
        bookie.stop()
        stream.goes_on()
        cluster.wait_gone(bookie)
        assert bookie.id not in client.describe(stream.writer.ledger_id).last_ensemble
        drain(cluster, bookie)
        stream.goes_on()
        follower.reaches(stream.acknowledged - 1)
        assert bookie.id not in cluster.children("cookies")


def test_a_cluster_is_migrated_to_quire_and_back(cluster: Cluster) -> None:
    first: list[Bookie] = [*cluster.add_apache(2, "sorted"), *cluster.add_apache(1, "db")]
    cluster.wait_ready()
    java, other = ApacheClient(cluster.uri, "v3"), ApacheClient(cluster.uri, "v3")
    ours = QuireClient(cluster.uri)
    sent = payloads(200)
    closed = {written(client, sent, shape): shape
              for client in (java, ours) for shape in (PLAIN, STRIPED)}  # fmt: skip
    stream = Stream(java.create(PLAIN), PAUSE_S)
    stream.reaches(100)  # Apache's reader takes a ledger without entries for one that is missing
    follower = Follower(other.open(stream.writer.ledger_id))

    recovering = cluster.autorecovery(openLedgerRereplicationGracePeriod=GRACE_MS)
    add_ours = lambda: cluster.add_quire(1)  # noqa: E731
    replace(cluster, first, add_ours, decommission, stream, follower, ours)
    recovering.check()
    recovering.kill()
    second = cluster.bookies[3:]
    only(cluster, second, ours, [*closed, stream.writer.ledger_id])
    for ledger_id, shape in closed.items():
        check_closed([ours, java, other], ledger_id, sent, shape)

    add_theirs = lambda: cluster.add_apache(1, "db")  # noqa: E731
    replace(cluster, second, add_theirs, recover, stream, follower, ours)
    only(cluster, cluster.bookies[6:], ours, [*closed, stream.writer.ledger_id])

    acknowledged = stream.stop()
    stream.writer.close()
    follower.reaches(acknowledged)
    follower.stop()
    check_closed([java, other, ours], stream.writer.ledger_id, Stream.sent(acknowledged), PLAIN)
    for ledger_id, shape in closed.items():
        check_closed([java, other, ours], ledger_id, sent, shape)
    for client in (java, other, ours):
        client.close()


def only(cluster: Cluster, bookies: list[Bookie], client: Client, ledgers: list[int]) -> None:
    """Check that no other bookie is registered or named by any ledger."""
    ids = {bookie.id for bookie in bookies}
    assert set(cluster.children("available")) == ids
    for ledger_id in ledgers:
        for ensemble in client.describe(ledger_id).segments.values():
            assert set(ensemble) <= ids
