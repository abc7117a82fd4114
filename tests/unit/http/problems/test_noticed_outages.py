"""The problem of a metadata store that bookies and autorecovery processes lost repeatedly."""

from __future__ import annotations

from quire.http.views.problems.metadata_store import of_noticed_outages, together
from quire.metadata.outages import Outage

NOW_MS = 1_900_000_000_000
URI = "zk+hierarchical://zk-1:2181;zk-2:2181/ledgers"


def outage(ago_s: float, seconds: float) -> Outage:
    until_ms = NOW_MS - int(ago_s * 1000)
    return Outage(until_ms - int(seconds * 1000), until_ms)


def test_outages_are_counted_by_server_with_a_check_of_each_zookeeper_server() -> None:
    noticed = {
        "b1:3181": [outage(900, 8), outage(40, 6)],
        "ar.7": [outage(901, 9), outage(600, 3), outage(41, 7)],
    }
    (one,) = of_noticed_outages(URI, noticed, NOW_MS)
    assert (one.severity, one.what) == (
        "warn",
        "2 servers noticed 3 outages of the metadata store in the last hour, the last time 40 s "
        "ago for 8 s: ar.7 (3 times), b1:3181 (2 times)",
    ), "five notes of three outages; the last one lasted from 48 s to 40 s ago"
    assert one.next.startswith("Several servers lost the store at the same time. So look at the st")
    assert "whether its process is paused" in one.next
    assert "echo srvr | curl -sm 3 telnet://zk-1:2181; echo srvr" in one.next
    assert "session timeout" in one.risk


def test_one_restart_of_the_store_is_not_a_problem() -> None:
    noticed = {name: [outage(40, 6)] for name in ("b1", "b2", "b3")}
    assert of_noticed_outages(URI, noticed, NOW_MS) == []
    assert of_noticed_outages(URI, {}, NOW_MS) == []


def test_one_server_that_loses_the_store_is_named() -> None:
    (one,) = of_noticed_outages(URI, {"b1": [outage(80, 5), outage(40, 6)]}, NOW_MS)
    assert one.what.startswith("1 server noticed 2 outages of the metadata store in the last hour")
    assert one.next.startswith("No two servers lost the store at the same time. So look at the ma")


def test_overlapping_outages_are_counted_once() -> None:
    """They were added up over all servers, so that two outages for five servers were ten."""
    seen = [Outage(10, 20), Outage(40, 50), Outage(15, 25), Outage(25, 30), Outage(12, 18)]
    assert together(seen) == [Outage(10, 30), Outage(40, 50)]
    assert together([]) == []
