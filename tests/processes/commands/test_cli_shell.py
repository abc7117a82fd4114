"""`quire shell` on our own cluster: ledgers, entries, and the files of a bookie."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import quire
from quire.cli.main import cli
from quire.client import LedgerReader
from quire.codec.entry.entry import Entry
from quire.errors import NoSuchLedgerError
from quire.testing.cluster import LocalCluster

SENT = [b"entry-%d" % number for number in range(5)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, directory=tmp_path_factory.mktemp("shell")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[quire.blocking.Client]:
    with quire.blocking.connect(cluster.uri) as client:
        yield client


@pytest.fixture
def ledger_id(client: quire.blocking.Client) -> int:
    with client.create_ledger(password=b"secret") as writer:
        writer.append_many(SENT)
    return writer.ledger_id


def run(cluster: LocalCluster, *words: str) -> Result:
    """Run a command for the first bookie, as its configuration says."""
    conf = cluster.bookies[0].directory.parent / "bk_server.conf"
    conf.write_text(
        f"metadataServiceUri={cluster.uri}\nbookiePort={cluster.bookies[0].port}\n"
        f"advertisedAddress=127.0.0.1\nledgerDirectories={cluster.bookies[0].directory}\n"
    )
    return CliRunner().invoke(cli, ["shell", "-conf", str(conf), *words])


def said(cluster: LocalCluster, *words: str) -> str:
    result = run(cluster, *words)
    assert result.exit_code == 0, (words, result.output)
    return result.stdout


def test_listbookies_prints_the_bookies_like_apache(cluster: LocalCluster) -> None:
    ids = {bookie.id for bookie in cluster.bookies}
    for flag, title in (("-rw", "ReadWrite Bookies :"), ("--all", "All Bookies :")):
        first, *lines = said(cluster, "listbookies", flag).splitlines()
        assert first == title
        found = re.findall(
            r"^BookieID:(\S+), IP:\S+, Port:\d+, Host", "\n".join(lines), re.MULTILINE
        )
        assert (len(lines), set(found)) == (3, ids)
    assert said(cluster, "listbookies", "-ro") == "No bookie exists!\n"
    assert said(cluster, "bookieinfo").count("\tFree: ") == 3
    assert '"writableBookiesCount" : 3,' in said(cluster, "clusterinfo")
    bookie = cluster.bookies[0]
    assert f"Address: 127.0.0.1 : {bookie.port}\n" in said(cluster, "endpointinfo", "-b", bookie.id)
    assert run(cluster, "endpointinfo", "-b", "nobody:1").exit_code == 1


def test_listledgers_prints_the_ledgers_like_apache(
    cluster: LocalCluster, client: quire.blocking.Client, ledger_id: int
) -> None:
    listed = said(cluster, "listledgers", "-bookieid", cluster.bookies[1].id).splitlines()
    assert f"ledgerID: {ledger_id}" in listed
    assert f"ledgerID: {ledger_id:x}" in said(cluster, "-ledgeridformat", "hex", "listledgers")
    found = said(cluster, "ledgermetadata", "-ledgerid", str(ledger_id))
    assert "lastEntryId=4" in found
    assert "secret" not in found
    assert said(cluster, "deleteledger", "-l", str(ledger_id), "--dry-run").startswith("ledger")
    assert client.ledger_metadata(ledger_id).closed
    said(cluster, "deleteledger", "-l", str(ledger_id), "-f")
    with pytest.raises(NoSuchLedgerError):
        client.ledger_metadata(ledger_id)
    result = run(cluster, "deleteledger", "-l", str(ledger_id), "-f")
    assert (result.exit_code, result.stdout) == (0, "")


def test_ledger_metadata_is_dumped_and_restored(
    cluster: LocalCluster, client: quire.blocking.Client, ledger_id: int, tmp_path: Path
) -> None:
    kept, name = str(tmp_path / "kept"), str(ledger_id)
    before = said(cluster, "ledgermetadata", "-l", name, "-dumptofile", kept)
    restore = ("ledgermetadata", "-l", name, "-restorefromfile", kept)
    assert run(cluster, *restore).exit_code == 1  # It exists.
    as_uuid = str(uuid.UUID(int=ledger_id))
    refused = run(
        cluster, "-ledgeridformat", "uuid", "ledgermetadata", "-l", as_uuid, *restore[-2:]
    )
    assert f"ledger {as_uuid} has metadata already" in refused.stderr
    client.delete_ledger(ledger_id)
    said(cluster, *restore, "--dry-run")
    assert run(cluster, "ledgermetadata", "-l", name).exit_code == 1
    said(cluster, *restore)
    assert said(cluster, "ledgermetadata", "-l", name) == before
    said(cluster, *restore, "-update")
    with client.open_ledger(ledger_id, password=b"secret") as reader:
        assert [bytes(entry.payload) for entry in reader.read()] == SENT
    (tmp_path / "kept").write_bytes(b"nonsense")
    assert "is not the metadata of a ledger" in run(cluster, *restore, "-update").stderr


def test_readledger_prints_the_entries_like_apache(cluster: LocalCluster, ledger_id: int) -> None:
    """The ledger's password is that of its metadata."""
    name, length = str(ledger_id), len(SENT[0])
    assert said(cluster, "readledger", "-l", name, "-fe", "1", "-le", "2", "-msg") == (
        f"--------- Lid={name}, Eid=1, EntrySize={2 * length} ---------\nentry-1\n"
        f"--------- Lid={name}, Eid=2, EntrySize={3 * length} ---------\nentry-2\n"
    )
    for bookie in cluster.bookies:
        found = said(cluster, "readledger", "--ledgerid", name, "-bookie", bookie.id, "-m")
        assert re.findall(r"entry-\d", found) == [one.decode() for one in SENT]


def test_readledger_of_a_bookie_without_the_entries_is_an_error(
    cluster: LocalCluster, ledger_id: int, client: quire.blocking.Client
) -> None:
    """A mistyped or decommissioned bookie is an error, and not an empty ledger."""
    name, bookie = str(ledger_id), cluster.bookies[0].id
    result = run(cluster, "readledger", "-l", name, "-b", f"{bookie}9")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"bookie {bookie}9 stores no entry of ledger {name}" in result.stderr
    assert "Did you mean 127.0.0.1:" in result.stderr
    result = run(cluster, "readledger", "-l", name, "-b", "elsewhere:1")
    assert result.exit_code == 2
    assert (
        f"Give one of {', '.join(client.ledger_metadata(ledger_id).segments[0].ensemble)}"
        in result.stderr
    )
    with client.create_ledger(ensemble_size=2, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many(SENT)
    other, member = client.ledger_metadata(writer.ledger_id).segments[0].ensemble
    words = ("readledger", "-l", str(writer.ledger_id), "-b", member, "-fe", "2", "-le", "2")
    result = run(cluster, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        f"bookie {member} should store none of the entries 2 to 2 of ledger {writer.ledger_id}. "
        f"Give one of {other}\n" in result.stderr
    )


def test_readledger_of_a_bookie_ends_at_the_end_of_the_ledger(
    cluster: LocalCluster, ledger_id: int, client: quire.blocking.Client
) -> None:
    """It reported entries that never existed as missing, one after the other without end."""
    bookie = cluster.bookies[0].id

    def read(ledger: int, *words: str) -> tuple[int, list[str], str]:
        result = run(cluster, "readledger", "-l", str(ledger), "-b", bookie, "-m", *words)
        return result.exit_code, re.findall(r"entry-\d", result.stdout), result.stderr

    sent = [one.decode() for one in SENT]
    forever = ("-le", "2147483646")
    status, found, told = read(ledger_id, *forever)
    assert (status, found) == (0, sent)
    assert f"ledger {ledger_id} is closed and ends at entry 4, so no later entry is read" in told
    status, found, told = read(ledger_id, "-fe", "100", "-le", "102")
    assert (status, found) == (2, [])
    assert f"ledger {ledger_id} is closed and ends at entry 4, so it has no entry 100" in told
    with client.create_ledger() as empty:
        pass
    status, found, told = read(empty.ledger_id, *forever)
    assert (status, found) == (2, [])
    assert f"ledger {empty.ledger_id} is closed and has no entries" in told
    with client.create_ledger() as writer:
        writer.append_many(SENT)
        # Nobody knows where an open ledger ends, and what is not there is not missing.
        assert read(writer.ledger_id, *forever) == (0, sent, "")


def test_listledgers_reports_a_bookie_without_ledgers(cluster: LocalCluster) -> None:
    result = run(cluster, "listledgers", "-bookieid", "127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no ledger has entries on bookie 127.0.0.1:1" in result.stderr


def test_simpletest_and_bookiesanity_succeed(
    cluster: LocalCluster, client: quire.blocking.Client
) -> None:
    before = client.list_ledgers()
    words = ("-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "20")
    assert re.search(r"^20 entries written to ledger \d+\. Last entry Id 19$",
                     said(cluster, "simpletest", *words), re.MULTILINE)  # fmt: skip
    assert client.list_ledgers() == before
    for bookie in cluster.bookies:
        found = said(cluster, "-localbookie", bookie.id, "bookiesanity", "-e", "7", "-t", "20")
        assert f"Ensemble: [{bookie.id}] for ledger: " in found
        assert "Read 7 entries from ledger " in found
    assert client.list_ledgers() == before


@pytest.mark.parametrize(("method", "when"), [("read_unconfirmed", "before"), ("read", "after")])
def test_simpletest_reads_everything_back(
    cluster: LocalCluster, client: quire.blocking.Client, monkeypatch: pytest.MonkeyPatch,
    method: str, when: str,
) -> None:  # fmt: skip
    """All entries are compared before and after the ledger is closed, as in Apache 4.17."""
    before, read = client.list_ledgers(), getattr(LedgerReader, method)
    seen = []

    async def damaged(self: LedgerReader, first: int, last: int) -> AsyncIterator[Entry]:
        async for entry in read(self, first, last):
            seen.append(entry.entry_id)
            yield entry if entry.entry_id < 19 else entry._replace(payload=memoryview(b"other"))

    monkeypatch.setattr(LedgerReader, method, damaged)
    result = run(cluster, "simpletest", "-numEntries", "20")
    assert (result.exit_code, seen) == (1, list(range(20)))
    assert f" {when} it was closed, and 1 entry does not have the payload" in result.stderr
    assert "The first of them is entry 19" in result.stderr
    assert client.list_ledgers() == before


def test_listfilesondisc_and_readlog_print_the_files_of_a_bookie(
    cluster: LocalCluster, ledger_id: int
) -> None:
    name, bookie = str(ledger_id), cluster.bookies[0]
    listed = said(cluster, "listfilesondisc", "-log").splitlines()
    assert listed[0] == "--------- Printing the list of EntryLog/Ledger Files ---------"
    files = [line for line in listed[1:] if line]
    assert files
    assert all(Path(file).parent == Path(bookie.directory) / "log" for file in files)
    mark = re.fullmatch(r"LastLogMark : Journal Id - (\d+)\((\w+)\.txn\), Pos - (\d+)\n",
                        said(cluster, "lastmark"))  # fmt: skip
    assert mark is not None
    number = mark[1]
    found = said(cluster, "ledger", "-meta", name)
    places = [int(place) for place in re.findall(r"entry \d+\t:\t\(log: \d+, pos: (\d+)\)", found)]
    assert len(places) == len(SENT)
    assert places == sorted(places)
    read = said(cluster, "readlog", "-ledgerid", name, "-msg", number)
    assert [int(place) for place in re.findall(r"ByteOffset=(\d+),", read)] == places
    assert re.findall(r"^entry-\d$", read, re.MULTILINE) == [one.decode() for one in SENT]
    one = said(cluster, "readlog", "-sp", str(places[1]), "-ep", str(places[2]), number)
    assert re.findall(r"Eid=(\d+)", one) == ["1", "2"]
    journal = said(cluster, "readjournal", "-msg", number)
    assert f"Lid={name}, Eid=4" in journal
    (segment,) = [file for file in files if int(Path(file).stem, 16) == int(number)]
    sizes = said(cluster, "readlogmetadata", Path(segment).name)
    assert re.search(rf"Lid={name}, TotalSizeOfEntriesOfLedger=\d+", sizes)
    assert name in said(cluster, "activeledgers", "-l", number).splitlines()[1].split()
    assert said(cluster, "localconsistencycheck").endswith("=== Check passed ===\n")
    assert run(cluster, "readlog", "999999").exit_code == 1
    assert run(cluster, "ledger", "999999").exit_code == 1
    assert run(cluster, "bookieformat", "-n", "-f", "--dry-run").exit_code == 1  # it runs


def created_on(client: quire.blocking.Client, pair: tuple[str, ...]) -> int:
    """Return an open ledger without entries on these two bookies."""
    while True:
        writer = client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        writer.abandon()
        found = client.ledger_metadata(writer.ledger_id).segments[0].ensemble
        if {*found} == {*pair}:
            return writer.ledger_id
        client.delete_ledger(writer.ledger_id)


def test_a_lost_bookie_is_recovered_with_the_shell(
    cluster: LocalCluster, client: quire.blocking.Client
) -> None:
    """Asked for, planned, renamed in vain; at the end of the module, for it ends a bookie."""
    with client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as writer:
        writer.append_many(SENT)
    ledger_id, name = writer.ledger_id, str(writer.ledger_id)
    lost = client.ledger_metadata(ledger_id).segments[0].ensemble[0]
    (bookie,) = (one for one in cluster.bookies if one.id == lost)
    assert f"ledger {name} : CLOSED\n0:\t{lost}*" in said(cluster, "recover", "-q", lost)
    assert run(cluster, "recover", "-f", lost).exit_code != 0  # it lives
    pair = client.ledger_metadata(ledger_id).segments[0].ensemble
    left_open = created_on(client, pair)
    empty = created_on(client, pair)
    client.open_ledger(empty, recover=True).close()
    bookie.stop()
    plan = said(cluster, "recover", "-dr", "-l", name, lost)
    assert f"1 ledger has replicas on {lost}: 5 entries" in plan
    (spare,) = {one.id for one in cluster.bookies} - {
        *client.ledger_metadata(ledger_id).segments[0].ensemble
    }
    rename = ("updateBookieInLedger", "-sb", lost, "-db", spare)
    result = run(cluster, *rename, "--dry-run")
    assert f"ledger {name} is not changed: {spare} has no entries of it" in result.stderr
    # An open ledger is not changed either: its writer may have acknowledged entries on the bookie.
    assert f"ledger {left_open} is not changed: {spare} has no entries of it" in result.stderr
    assert f"recover it with `quire ledger recover {left_open}`" in result.stderr
    assert f"ledger {empty} would be updated" in result.stdout
    assert result.exit_code == 1
    assert run(cluster, *rename, "-l", "1").exit_code == 1
    assert lost in client.ledger_metadata(ledger_id).segments[0].ensemble
    done = said(cluster, "recover", "-force", "-ledger", name, lost)
    assert "1 of 1 ledger no longer uses" in done
    assert spare in client.ledger_metadata(ledger_id).segments[0].ensemble
