"""`quire shell` accepts Apache's verbs and flags, and prints in Apache's form."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from quire.cli.main import cli
from quire.cli.shell.bookie import bookie_format
from quire.cli.shell.ledgers import metadata_text
from quire.cli.shell.session import Shell, bookie_line, hex_dump, readable
from quire.cli.shell.shell import REFUSED, shell
from quire.cli.shell.verbs import VERBS
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.ledger_metadata_format import encode
from quire.metadata import open_metadata
from quire.metadata.common import NODE_BYTES_MAX
from quire.metadata.interface import BookieAddress
from quire.metadata.ledgers.size import CLOSING_BYTES

FLAGS = {
    "activeledgers": "l logId t timeout",
    "autorecovery": "e enable d disable",
    "bookieformat": "f force n nonInteractive d deleteCookie",
    "bookieinfo": "",
    "bookiesanity": "e entries t timeout",
    "clusterinfo": "",
    "cookie_create": "cf cookie-file",
    "cookie_delete": "",
    "cookie_generate": "i instance-id j journal-dirs l ledger-dirs o output-file ix index-dirs",
    "cookie_get": "",
    "cookie_update": "cf cookie-file",
    "decommissionbookie": "bookieid",
    "deleteledger": "l ledgerid f force",
    "endpointinfo": "b bookieid",
    "forceauditchecks": "calc checkallledgerscheck ppc placementpolicycheck rc replicascheck",
    "help": "",
    "initbookie": "",
    "initnewcluster": "",
    "lastmark": "",
    "ledger": "m meta",
    "ledgermetadata": "dumptofile restorefromfile update l ledgerid",
    "listbookies": "a all h hostnames ro readonly rw readwrite",
    "listfilesondisc": "txn journal log entrylog idx index",
    "listledgers": "m meta bookieid",
    "listunderreplicated": "c onlydisplayledgercount emr excludingmissingreplica mr missingreplica "
    "pmr printmissingreplica prw printreplicationworkerid",
    "localconsistencycheck": "",
    "lostbookierecoverydelay": "g get s set",
    "metaformat": "f force n nonInteractive",
    "nukeexistingcluster": "f force i instanceid p zkledgersrootpath",
    "queryautorecoverystatus": "",
    "readjournal": "dir m msg",
    "readledger": "m msg l ledgerid fe firstentryid le lastentryid r force-recovery b bookie",
    "readlog": "m msg l ledgerid e entryid sp startpos ep endpos",
    "readlogmetadata": "",
    "recover": "q query dr dryrun f force l ledger sk skipOpenLedgers d deleteCookie "
    "sku skipUnrecoverableLedgers rate replicationRate",
    "simpletest": "e ensemble w writeQuorum a ackQuorum n numEntries",
    "triggeraudit": "",
    "updateBookieInLedger": "sb srcBookie db destBookie s updatespersec r maxOutstandingReads "
    "l limit v verbose p printprogress",
    "updateledgers": "b bookieId s updatespersec r maxOutstandingReads l limit v verbose "
    "p printprogress",
    "whatisinstanceid": "",
    "whoisauditor": "",
}
"""The flags in `bookkeeper shell help` of 4.17 and 4.18, except for the verbs in REFUSED."""

URI = "sqlite:////tmp/nothing.db"


def quire(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["shell", *arguments])


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("QUIRE_METADATA", raising=False)
    found = f"sqlite:///{tmp_path}/cluster.db"

    async def make() -> None:
        store = await open_metadata(found, create=True)
        await store.initialise()
        await store.close()

    asyncio.run(make())
    return found


def a_shell(ledger_id_format: str = "long", *, hex_entries: bool = False) -> Shell:
    return Shell(URI, {}, (), "", ledger_id_format, hex_entries)


def test_every_shell_verb_has_its_flags() -> None:
    assert set(VERBS) == set(FLAGS)
    assert not set(REFUSED) & set(VERBS)


@pytest.mark.parametrize("verb", FLAGS)
def test_every_flag_is_accepted_with_one_dash_or_two(verb: str) -> None:
    command = shell.get_command(click.Context(shell), verb)
    assert command is not None
    taken = {spelling for parameter in command.params for spelling in parameter.opts}
    for flag in FLAGS[verb].split():
        assert {f"-{flag}", f"--{flag}"} <= taken, flag


@pytest.mark.parametrize("verb", REFUSED)
def test_a_refused_verb_names_the_command_to_use(verb: str) -> None:
    result = quire("--metadata", URI, verb, "-v", "--x", "1", "word")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {verb}: ")
    assert "quire bookie" in line or "nothing to convert" in line


def test_a_missing_cluster_or_bookie_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_METADATA", raising=False)
    for verb, named in (("listledgers", "-conf"), ("lastmark", "--dir"), ("nonsense", "nonsense")):
        result = quire(verb)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert named in line


def test_bk_server_conf_selects_the_cluster(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has precedence over the environment, but not over --metadata.

    Values that a bookie would refuse do not matter here.
    """
    conf = tmp_path / "bk_server.conf"
    conf.write_text(f"metadataServiceUri={uri}\njournalSyncData=false\nbookiePort=3999\n")
    monkeypatch.setenv("QUIRE_METADATA", URI)
    said = quire("-conf", str(conf), "whatisinstanceid")
    assert said.exit_code == 0, said.stderr
    assert said.stdout.startswith(f"Metadata Service Uri: {uri} InstanceId: ")
    other = quire("--metadata", "sqlite:////nowhere/x.db", "--conf", str(conf), "whatisinstanceid")
    assert other.exit_code == 1
    assert "/nowhere/x.db" in other.stderr


def test_a_service_of_several_bookies_needs_the_bookie_id(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_BOOKIE_PROCESSES", "2")
    monkeypatch.setenv("QUIRE_BOOKIE_BOOKIE_ID", "b7")
    conf = tmp_path / "bk_server.conf"
    conf.write_text(f"metadataServiceUri={uri}\nledgerDirectories=/data\n")
    for words in (["listfilesondisc"], ["readlog", "0"], ["localconsistencycheck"]):
        result = quire("-conf", str(conf), *words)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert "--dir /data/bookie-0 or --dir /data/bookie-1" in line
    named = quire("-conf", str(conf), "--dir", str(tmp_path / "none"), "listfilesondisc")
    assert "/data" not in named.stderr
    assert str(tmp_path / "none") in named.stderr
    result = quire("-conf", str(conf), "bookiesanity")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "-localbookie ID" in line


def test_localbookie_works_without_a_value(uri: str) -> None:
    for words in (
        ["-localbookie"],
        ["-localbookie", "h:1"],
        ["-localbookie", "bookie-1"],
        ["-localbookie", "bookie-1", "-entryformat", "hex"],
        ["-localbookie=bookie-1"],
        ["-entryformat", "hex", "--localbookie"],
        ["-entryformat", "hex"],
    ):
        result = quire("--metadata", uri, *words, "listledgers")
        assert (result.exit_code, result.stdout) == (0, ""), result.stderr


def test_localbookie_overrides_the_file(uri: str, tmp_path: Path) -> None:
    conf = tmp_path / "bk_server.conf"
    conf.write_text(f"metadataServiceUri={uri}\nbookieId=of-the-file\n")
    for words, bookie in ((["-localbookie", "bookie-1"], "bookie-1"),
                          (["-localbookie"], "of-the-file"), ([], "of-the-file")):  # fmt: skip
        result = quire("-conf", str(conf), *words, "bookiesanity")
        assert result.exit_code == 2
        assert f"bookie {bookie} is not registered as writable" in result.stderr


def test_a_verb_after_localbookie_is_not_taken_for_an_id(uri: str) -> None:
    for words in (["listledgers"], ["updatecookie"], ["nonsense"]):
        result = quire("--metadata", uri, "-localbookie", *words)
        assert result.exit_code == (0 if words == ["listledgers"] else 2)
        assert words[0] in result.stderr or not result.exit_code


def test_a_verb_prints_its_help() -> None:
    assert "readledger" in quire("help").stdout
    assert "-firstentryid" in quire("help", "readledger").stdout
    assert quire("help", "nonsense").exit_code == 2


def test_a_metadata_file_is_not_formatted(uri: str) -> None:
    """SQLite's file is the whole cluster: deleting it is up to its owner."""
    for words in (["metaformat", "-n", "-f"], ["nukeexistingcluster", "-p", "/ledgers", "-f"]):
        result = quire("--metadata", uri, *words)
        assert result.exit_code == 2
        assert "delete the file" in result.stderr
    assert quire("--metadata", uri, "whatisinstanceid").exit_code == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nukeexistingcluster", "-p", "/ledgers"], "-force"),
        (["nukeexistingcluster", "-p", "/ledgers", "-f", "-i", "x"], "exactly one of"),
        (["lostbookierecoverydelay"], "-get"),
        (["lostbookierecoverydelay", "-g", "-s", "1"], "-get"),
        (["autorecovery"], "-enable"),
        (["autorecovery", "-e", "-d"], "-disable"),
        (["listbookies"], "-readwrite"),
        (["ledgermetadata", "-l", "x"], "'x'"),
        (["readledger", "-l", "1", "-fe", "5", "-le", "4"], "-firstentryid 5"),
        (["forceauditchecks"], "-calc"),
        (["recover", "h:1"], "the recovery was not started: the command must be confirmed"),
        (["recover", ",", "-f"], "no bookie is given"),
        (["updateledgers", "-bookieidtohostname"], "No such option '-bookieidtohostname'"),
        (["readledger", "-ledgerId", "7"], "Did you mean"),
        (["bookieformat", "-n"], "--dir"),
        (["cookie_generate", "-j", "a", "-l", ",", "-o", "none", "b:1"], "-ledger-dirs"),
    ],
)
def test_wrong_usage_is_explained(uri: str, words: list[str], named: str) -> None:
    result = quire("--metadata", uri, *words)
    assert result.exit_code == 2
    assert named in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(("silent", "terminal"), [(True, True), (True, False), (False, False)])
def test_an_unconfirmed_format_is_refused(
    silent: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error once claimed that there was no terminal, although -n was given in one."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
    shell: Any = SimpleNamespace(own_directories=lambda: ("/a",))
    with pytest.raises(click.UsageError) as refused:
        bookie_format(shell, silent, False, False, False)
    assert "no terminal" not in refused.value.message
    assert refused.value.message.startswith("nothing was deleted: ")
    assert "Give -nonInteractive and -force, or run it in a terminal" in refused.value.message


def test_autorecovery_switches_and_the_delay_can_be_set(uri: str) -> None:
    run = ("--metadata", uri)
    assert quire(*run, "lostbookierecoverydelay", "-set", "7").exit_code == 0
    said = quire(*run, "lostbookierecoverydelay", "-get").stdout
    assert said == "LostBookieRecoveryDelay value in ZK: 7\n"
    quire(*run, "autorecovery", "-disable")
    assert '"ledgerReplicationEnabled" : false' in quire(*run, "clusterinfo").stdout
    quire(*run, "autorecovery", "--enable")
    assert '"ledgerReplicationEnabled" : true' in quire(*run, "clusterinfo").stdout
    assert quire(*run, "triggeraudit").exit_code == 0
    assert quire(*run, "whoisauditor").exit_code == 1


def test_cookies_are_generated_created_and_read(uri: str, tmp_path: Path) -> None:
    run, file = ("--metadata", uri), str(tmp_path / "cookie")
    words = ("-j", "/j", "-l", "/a,/b", "-o", file, "h:1")
    assert quire(*run, "cookie_generate", *words).exit_code == 0
    assert quire(*run, "cookie_get", "h:1").exit_code == 1
    assert quire(*run, "cookie_create", "-cf", file, "--dry-run", "h:1").exit_code == 0
    assert quire(*run, "cookie_get", "h:1").exit_code == 1
    assert quire(*run, "cookie_create", "-cf", file, "h:1").exit_code == 0
    said = quire(*run, "cookie_get", "h:1").stdout
    assert said.startswith("Cookie for bookie 'h:1' is:\n---\n5\n")
    assert 'ledgerDirs: "2\\t/a\\t/b"' in said
    assert quire(*run, "cookie_delete", "h:1").exit_code == 0
    assert quire(*run, "cookie_get", "h:1").exit_code == 1


# -- as Apache writes it ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [("long", "255"), ("hex", "ff"), ("uuid", "00000000-0000-0000-0000-0000000000ff")],
)
def test_ledger_ids_are_formatted_and_parsed(kind: str, text: str) -> None:
    found = a_shell(kind)
    assert found.ledger(255) == text
    assert found.parse_ledger(f" {text} ") == 255
    with pytest.raises(ValueError):
        found.parse_ledger("nonsense")
    with pytest.raises(ValueError):
        found.parse_ledger("-1")


def test_entries_are_shown_as_text_or_hex() -> None:
    assert a_shell().entry("ž".encode()) == "ž"
    assert a_shell().entry(b"\xff") == "\N{REPLACEMENT CHARACTER}"
    dumped = a_shell(hex_entries=True).entry("entry-3-2 ž payload".encode())
    assert dumped.splitlines() == [
        "00000000 65 6E 74 72 79 2D 33 2D 32 20 C5 BE 20 70 61 79 entry-3-2 .. pay",
        "00000010 6C 6F 61 64                                     load",
    ]
    assert hex_dump(b"") == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (999, "999"),
        (1000, "1000(1KB)"),
        (79_450_931_200, "79450931200(79.45GB)"),
        (79_375_319_040, "79375319040(79.375GB)"),
        (5_000_000_000_000_000, "5000000000000000(5000TB)"),
    ],
)
def test_sizes_are_printed_in_readable_units(size: int, text: str) -> None:
    assert readable(size) == text


def test_a_bookie_is_printed_like_apache() -> None:
    address = BookieAddress("me", "127.0.0.1", 7)
    assert bookie_line("me", address).startswith("BookieID:me, IP:127.0.0.1, Port:7, Hostname:")
    assert bookie_line("me", None) == "BookieID:me, IP:Unknown, Port:Unknown, Hostname:Unknown"


def test_ledger_metadata_is_printed_like_apache() -> None:
    metadata = LedgerMetadata(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        segments=(Segment(0, ("a:1", "b:2")), Segment(3, ("a:1", "c:3"))),
        custom={"k": b"v"},
    )
    ensembles = "ensembles={0=[a:1, b:2], 3=[a:1, c:3]}, customMetadata={k=base64:dg==}}"
    begin = "LedgerMetadata{formatVersion=3, ensembleSize=2, writeQuorumSize=2, ackQuorumSize=1, "
    rest = f"digestType=CRC32C, password=OMITTED, {ensembles}"
    assert metadata_text(metadata) == f"{begin}state=OPEN, {rest}"
    closed = metadata.with_close(4, 50)
    assert metadata_text(closed) == f"{begin}state=CLOSED, length=50, lastEntryId=4, {rest}"


def test_a_ledger_with_full_metadata_does_not_stop_a_bookie_rename(
    uri: str,
) -> None:
    plain = LedgerMetadata(1, 1, 1, (Segment(0, ("b1",)),)).with_close(-1, 0)
    most = NODE_BYTES_MAX + CLOSING_BYTES
    size = len(encode(dataclasses.replace(plain, custom={"k": bytes(most)})))
    full = dataclasses.replace(plain, custom={"k": bytes(2 * most - size)})

    async def made() -> None:
        store = await open_metadata(uri)
        for one in (full, plain):
            await store.create_ledger(one)
        await store.close()

    async def names() -> list[str]:
        store = await open_metadata(uri)
        found = [(await store.read_ledger(n)).value.segments[0].ensemble[0] for n in range(2)]
        await store.close()
        return found

    asyncio.run(made())
    result = quire(
        "--metadata", uri, "updateBookieInLedger", "-sb", "b1", "-db", "bookie-2.example.com"
    )  # fmt: skip
    assert result.exit_code == 1
    assert "ledger 0 is not changed: " in result.stderr
    assert "would become too large" in result.stderr
    assert asyncio.run(names()) == ["b1", "bookie-2.example.com"]


def test_the_password_file_of_a_ledger_is_readable_only_by_its_owner(
    uri: str, tmp_path: Path
) -> None:
    metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("b1",)),), password=b"hunter2")

    async def made() -> None:
        store = await open_metadata(uri)
        await store.create_ledger(metadata)
        await store.close()

    asyncio.run(made())
    file = tmp_path / "kept"
    former = os.umask(0o022)
    try:
        assert quire("--metadata", uri, "ledgermetadata", "-l", "0", "-dumptofile", str(file))
    finally:
        os.umask(former)
    assert b"hunter2" in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    shorter = tmp_path / "exists"
    shorter.write_bytes(b"x" * 10_000)
    assert quire("--metadata", uri, "ledgermetadata", "-l", "0", "-dumptofile", str(shorter))
    assert shorter.read_bytes() == file.read_bytes()
