"""`quire autorecovery`: its reports and switches, on a store without bookies."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quire._runtime.clock import SystemClock
from quire._runtime.names.process_name import process_name
from quire.cli.main import cli
from quire.codec.metadata.registration import is_bookie_id
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Create
from quire.replication.autorecovery.election import Election
from quire.replication.explain.status import unexamined
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.notes import LastFailure, PlacementCheck, note_failure, note_placement
from tests.support.metadata.metadata import in_store

TIMEOUT_S = 30.0


@pytest.fixture(autouse=True)
def _nobody_s_loop() -> None:
    """Close an event loop that the cleanup of a simulated world may have created.

    The commands would otherwise drop it unclosed.
    """
    try:
        left = asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        return
    left.close()
    asyncio.set_event_loop(None)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path}/cluster.db"
    in_store(found, _initialise)
    return found


async def _initialise(store: MetadataStore) -> None:
    await store.initialise()


def autorecovery(uri: str, *words: str) -> Result:
    result = CliRunner().invoke(cli, ["autorecovery", words[0], "--metadata", uri, *words[1:]])
    assert result.exit_code == 0, result.stderr
    return result


def test_autorecovery_is_switched_off_and_on(uri: str) -> None:
    assert "autorecovery was switched on already" in autorecovery(uri, "enable").stderr
    assert "autorecovery is switched off" in autorecovery(uri, "disable").stderr
    assert "autorecovery was switched off already" in autorecovery(uri, "disable").stderr
    first, second = autorecovery(uri, "status").stdout.splitlines()[:2]
    assert re.fullmatch(
        f"autorecovery is switched off by {re.escape(process_name())} since 20[-0-9T:]*Z; "
        "`quire autorecovery enable` switches it on",
        first,
    )
    assert second == "auditor: none; start one with `quire autorecovery start`"
    off = json.loads(autorecovery(uri, "status", "--json").stdout)["switched_off"]
    assert (off["by"], off["since_ms"] > 1_700_000_000_000) == (process_name(), True)
    assert "autorecovery is switched on" in autorecovery(uri, "enable").stderr
    found = json.loads(autorecovery(uri, "status", "--json").stdout)
    assert (found["enabled"], found["switched_off"]) == (True, None)


def test_a_switch_set_by_java_does_not_name_who_set_it(uri: str) -> None:
    """Java's processes create the node without a value."""

    async def disable(store: MetadataStore) -> None:
        root = ReplicationMarks(store).root
        await store.tree.make_path(root)
        await store.tree.commit(Create(f"{root}/disable", b""))

    in_store(uri, disable)
    first = autorecovery(uri, "status").stdout.splitlines()[0]
    assert first == "autorecovery is switched off; `quire autorecovery enable` switches it on"
    assert "autorecovery is switched on" in autorecovery(uri, "enable").stderr


def test_zero_marks_are_not_reported_as_health_without_an_auditor(uri: str) -> None:
    """With autorecovery off, `status` once reported 0 ledgers that lack replicas instead of 8.

    Later it said "6 are marked" and "no ledger is being marked".
    """
    nobody = "no autorecovery process runs as auditor: ledgers without a mark may lack replicas"
    assert nobody in autorecovery(uri, "status").stdout
    assert nobody in autorecovery(uri, "list").stderr
    autorecovery(uri, "disable")
    off = "no further ledger is being marked, because autorecovery is switched off: ledgers"
    assert off in autorecovery(uri, "status").stdout
    listed = autorecovery(uri, "list")
    assert listed.stdout == ""
    assert off in listed.stderr
    assert "`quire autorecovery enable` switches it on" in listed.stderr
    shell = CliRunner().invoke(cli, ["shell", "--metadata", uri, "listunderreplicated"])
    assert shell.stdout == "Under replicated ledger count: 0\n", "as Apache prints it"
    assert off in shell.stderr
    assert unexamined(enabled=True, auditor="healer") == ""


def test_the_delay_is_set_and_shown(uri: str) -> None:
    assert autorecovery(uri, "delay").stdout == "0\n"
    assert autorecovery(uri, "delay", "600").stdout == ""
    assert autorecovery(uri, "delay").stdout == "600\n"
    autorecovery(uri, "trigger")

    async def look(store: MetadataStore) -> None:
        found = await store.tree.read(f"{ReplicationMarks(store).root}/lostBookieRecoveryDelay")
        assert (found.value, found.version) == (b"600", 1)

    in_store(uri, look)


def test_a_trigger_names_the_auditor_or_says_that_there_is_none(uri: str) -> None:
    """The command once printed nothing if no process could do the requested work."""
    assert "no autorecovery process runs" in autorecovery(uri, "trigger").stderr
    elected, asked = threading.Event(), threading.Event()

    async def elect(store: MetadataStore) -> None:
        async with Election(store, "host-7", SystemClock()).won():
            elected.set()
            await asyncio.to_thread(asked.wait, TIMEOUT_S)

    with ThreadPoolExecutor(1) as pool:
        auditor = pool.submit(in_store, uri, elect)
        try:
            assert elected.wait(TIMEOUT_S)
            said = autorecovery(uri, "trigger").stderr
            assert said == "the auditor host-7 looks for lost bookies now\n"
            autorecovery(uri, "disable")
            said = autorecovery(uri, "trigger").stderr
            assert "autorecovery is switched off, so nothing is copied" in said
        finally:
            asked.set()
        auditor.result(TIMEOUT_S)


def test_marked_ledgers_are_listed_with_the_reason(uri: str) -> None:
    async def mark(store: MetadataStore) -> None:
        locks = ReplicationLocks(store, "tester", SystemClock())
        await locks.mark(7, ["10.0.0.9:3181", "10.0.0.8:3181"])
        await locks.mark(70_000, [])
        failure = LastFailure("no bookie is left", 1, 3, 2, "host-2")
        await note_failure(store, 7, failure)

    in_store(uri, mark)
    first, second = autorecovery(uri, "list").stdout.splitlines()
    assert first.startswith("7 lacks 10.0.0.9:3181, 10.0.0.8:3181 (mark last changed 2")
    assert first.endswith(": no bookie is left (3 attempts, host-2)")
    assert second.startswith("70000 lacks ? (mark last changed 2")
    [found, _] = map(json.loads, autorecovery(uri, "list", "--json").stdout.splitlines())
    assert (found["ledger"], found["failure"]["attempts"]) == (7, 3)
    assert found["why"] == "no bookie is left (3 attempts, host-2)"
    status = json.loads(autorecovery(uri, "status", "--json").stdout)
    assert (status["marked"], status["failing"], status["locked"]) == (2, 1, 0)
    [failure] = status["failures"]
    assert failure["failure"]["reason"] == "no bookie is left"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--set", "poll_s=never"], "poll_s=never"),
        (["--set", "poll"], "is not NAME=VALUE. The names are: "),
        (["--set", "ledgers_at_once=0"], "ledgers_at_once=0"),
        (["--set", "bytes_per_s=fast"], "bytes_per_s=fast"),
        (["--set", "backoff_s=inf"], "backoff_s=inf"),
        (["--auditor-only", "--worker-only"], "exclude each other"),
    ],
)
def test_invalid_options_are_usage_errors(uri: str, words: list[str], named: str) -> None:
    result = CliRunner().invoke(cli, ["autorecovery", "start", "--metadata", uri, *words])
    assert result.exit_code == 2
    assert named in result.stderr


def test_a_process_has_a_name_that_java_accepts_as_a_bookie_id() -> None:
    assert is_bookie_id(process_name())


def test_the_status_shows_the_result_of_the_placement_check(uri: str) -> None:
    assert json.loads(autorecovery(uri, "status", "--json").stdout)["placement"] is None

    async def note(store: MetadataStore) -> None:
        await note_placement(store, PlacementCheck(1_700_000_000_000, 10, 2, (3, 5)))

    in_store(uri, note)
    [*_, line] = autorecovery(uri, "status").stdout.splitlines()
    assert line.startswith("placement: 2 of 10 ledgers violate the placement policy, as of 2023")
    found = json.loads(autorecovery(uri, "status", "--json").stdout)["placement"]
    assert (found["misplaced"], found["first"]) == (2, [3, 5])
