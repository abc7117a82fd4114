"""`quire shell` and Apache's BookieShell print the same lines for one Apache cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

import quire
from quire.cli.main import cli
from tests.support.interop.apache_cluster import Cluster

pytestmark = pytest.mark.interop

SENT = [b"entry-%d" % number for number in range(5)]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("quire-shell")) as cluster:
        cluster.add_apache(3)
        cluster.wait_ready()
        yield cluster


def run(cluster: Cluster, *words: str) -> Result:
    return CliRunner().invoke(cli, ["shell", "--metadata", cluster.uri, *words])


def said(cluster: Cluster, *words: str) -> str:
    result = run(cluster, *words)
    assert result.exit_code == 0, (words, result.output)
    return result.stdout


def lines(text: str, *kinds: str) -> list[str]:
    """Return the lines that begin with one of these, sorted, because Apache's come in any order."""
    return sorted(line for line in text.splitlines() if line.startswith(kinds))


@pytest.mark.slow
def test_both_shells_print_the_same_lines(apache: Cluster) -> None:
    with quire.blocking.connect(apache.uri) as client:
        ids = []
        for _ in range(2):
            with client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2) as writer:
                writer.append_many(SENT)
            ids.append(str(writer.ledger_id))
    password = re.compile(r"password=[^,]*")
    for words, kinds in (
        (("listbookies", "-rw"), ("ReadWrite", "BookieID:")),
        (("listbookies", "-a", "-h"), ("All", "BookieID:")),
        (("listbookies", "-ro"), ("No bookie", "BookieID:")),
        (("whatisinstanceid",), ("Metadata Service Uri",)),
        (("clusterinfo",), ("--------- Cluster", "{", "}", '  "')),
        (("endpointinfo", "-b", apache.bookies[0].id), ("Bookied", "Endp", "Proto", "Addr", "Ext")),
        (("listledgers", "-meta"), ("ledgerID: ", "LedgerMetadata{")),
        (("listledgers", "-bookieid", apache.bookies[0].id), ("ledgerID: ",)),
        (("-ledgeridformat", "hex", "ledgermetadata", "-ledgerid", ids[0]), ("ledgerID: ", "Led")),
        (("readledger", "-l", ids[1], "-fe", "1", "-le", "3", "-msg"), ("--------- Lid", "entry")),
        (("-entryformat", "hex", "readledger", "-l", ids[1], "-m"), ("--------- Lid", "00000")),
        (("listunderreplicated",), ("Under replicated ledger count",)),
        (("queryautorecoverystatus",), ("CurrentRecover", "\t")),
        (("cookie_get", apache.bookies[1].id), ("Cookie for", "bookieHost", "ledgerDirs", "inst")),
        (("bookieinfo",), ("Free disk",)),
    ):  # fmt: skip
        ours = lines(password.sub("", said(apache, *words)), *kinds)
        theirs = lines(password.sub("", apache.shell(*words)), *kinds)
        assert ours == theirs, words
        assert ours, words


@pytest.mark.slow
def test_each_shell_reads_what_the_other_wrote(apache: Cluster) -> None:
    wrote = re.compile(r"^20 entries written to ledger (\d+)\. Last entry Id 19$", re.MULTILINE)
    words = ("simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2",
             "-numEntries", "20")  # fmt: skip
    assert wrote.search(said(apache, *words))
    assert wrote.search(apache.shell(*words))
    assert "succeeded" in said(
        apache, "-localbookie", apache.bookies[0].id, "bookiesanity", "-t", "20"
    )
    already = "Autorecovery already {}. Doing nothing"
    assert said(apache, "autorecovery", "-disable") == "Disabling autorecovery\n"
    assert already.format("disabled") in apache.shell("autorecovery", "-disable")
    assert "Enabling autorecovery" in apache.shell("autorecovery", "-enable")
    assert already.format("enabled") in said(apache, "autorecovery", "-enable")
    said(apache, "lostbookierecoverydelay", "-set", "7")
    assert "LostBookieRecoveryDelay value in ZK: 7" in apache.shell(
        "lostbookierecoverydelay", "-get"
    )


def test_a_cluster_is_deleted_and_created_again(cluster: Cluster) -> None:
    """The cluster can be deleted and created again without bookies, but not with one."""
    before = said(cluster, "whatisinstanceid")
    nuke = ("nukeexistingcluster", "-zkledgersrootpath", "/ledgers")
    assert run(cluster, *nuke, "-instanceid", "another").exit_code == 2
    assert run(cluster, "nukeexistingcluster", "-p", "/other", "-f").exit_code == 2
    said(cluster, *nuke, "-force", "--dry-run")
    assert run(cluster, "metaformat", "-nonInteractive").exit_code == 2
    assert said(cluster, "whatisinstanceid") == before
    assert "Successfully formatted" in said(cluster, "metaformat", "-nonInteractive", "-force")
    assert said(cluster, "whatisinstanceid") != before
    (bookie,) = cluster.add_quire(1)
    cluster.wait_ready()
    for words in (("metaformat", "-n", "-f"), (*nuke, "-f")):
        result = run(cluster, *words)
        assert result.exit_code == 2
        assert f"registered ({bookie.id})" in result.stderr
    with (
        quire.blocking.connect(cluster.uri) as client,
        client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer,
    ):
        writer.append_many(SENT)
    bookie.stop()
    cluster.wait_gone(bookie)
    said(cluster, *nuke, "-force")
    assert run(cluster, "whatisinstanceid").exit_code == 1
    assert "Successfully initiated cluster" in said(cluster, "initnewcluster")
    assert run(cluster, "initnewcluster").exit_code == 1
    assert said(cluster, "listledgers") == ""
