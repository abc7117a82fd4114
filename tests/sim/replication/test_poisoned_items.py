"""A bad item in any pass over many items is skipped and named, and all else is done.

`PASSES` has a test for every function that lists ledgers, marks, cookies or notes. The syntax tree
shows which functions do so. A new one fails `test_every_background_pass_has_a_case` until it
has an entry.
"""

from __future__ import annotations

import ast
import asyncio
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import quire
from quire._runtime.clock import SystemClock
from quire.bookie.background.damage import DamageReports
from quire.bookie.background.over_replicated import OverReplicated
from quire.bookie.directories.lost_directory import KnownBookie
from quire.bookie.directories.replacement import DirectoryRemoval
from quire.cli.cluster.destroyed import destroyed
from quire.client.datasets.heads import HEADS as DATASETS
from quire.codec.metadata.cookie import Cookie, encode
from quire.errors import UnreadableMetadataError, UsageError
from quire.http.routes.cluster import ClusterRoutes, cluster_facts
from quire.http.routes.contents import ContentRoutes
from quire.http.routes.dashboard import DashboardRoutes
from quire.http.routes.jobs import Jobs
from quire.http.routes.quire_api import QuireRoutes
from quire.http.server.api import Call
from quire.http.views.cluster_view import ClusterView
from quire.http.views.problems.cluster import problems
from quire.http.watch.ledger_index import LedgerIndex
from quire.metadata.ledgers.naming import pages_naming
from quire.metadata.ledgers.underreplicated import mark_ledger
from quire.metadata.ledgers.unreadable import Unread
from quire.metadata.tree import Put
from quire.replication.audit import pieces as audit_pieces
from quire.replication.audit.audit import Audit
from quire.replication.autorecovery.auditor import Auditor
from quire.replication.autorecovery.autorecovery import Autorecovery
from quire.replication.autorecovery.election import auditor_of
from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
from quire.replication.autorecovery.worker import forget_old_failures
from quire.replication.explain.at_risk import at_risk
from quire.replication.explain.explain import explain_ledger
from quire.replication.explain.status import marked_ledgers, overview
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.notes import LastFailure, last_failure, last_unreadable, note_failure
from quire.replication.moves.decommission import decommission
from quire.replication.moves.rebalance import rebalance
from quire.replication.moves.recover import MoveOptions, recover_bookie
from quire_simulator.world.world import bookie_id
from tests.support.metadata.metadata import in_store
from tests.support.metadata.poisoned import (
    WHY,
    File,
    Scene,
    broken_mark,
    scene,
    stray_mark,
)
from tests.support.waiting import until

QUICK = MoveOptions(open_grace_s=1.0)
LIMIT_S = 300.0
NO_CALL = Call({}, {}, {})


# -- commands that destroy ----------------------------------------------------------------------


def what_is_destroyed_is_named(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        bookie = next(iter((await there.store.bookies()).writable))
        told = await destroyed(there.store, bookie)
        assert f"the metadata of ledger {there.bad} cannot be read, so it may have one" in told
        assert (await destroyed(there.store)).startswith(f"the cluster has {len(there.ids)} ledger")

    scene(play)


# -- autorecovery -----------------------------------------------------------------------------


async def run_auditor(
    there: Scene, stats: AutorecoveryStats, **settings: float
) -> asyncio.Task[None]:
    everything = {"ledger_check_interval_s": 0.0, "backoff_s": 0.5, **settings}
    auditor = Auditor(
        there.client,
        there.locks,
        settings=AutorecoverySettings(**everything),  # type: ignore[arg-type]
        stats=stats,
        clock=there.client.clock,
        rng=random.Random(1),
        log=there.log,
    )
    return asyncio.ensure_future(auditor.run())


async def ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


def auditor_marks_all_others(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        stats, lost = AutorecoveryStats(), await there.lost()
        await asyncio.sleep(30)
        running = await run_auditor(there, stats)
        await until(lambda: stats.audits, right=lambda count: count > 0, limit_s=LIMIT_S)
        for well in (there.ids[0], there.ids[2]):
            mark = await there.locks.marked(well)
            assert mark is not None
            assert mark.value.replicas == (lost,)
        assert await there.locks.marked(there.bad) is None
        assert (stats.store_errors, stats.ledgers_unreadable) == (0, 1)
        [told] = there.told("ledgers_unreadable")
        assert (told["count"], list(told["ledgers"])) == (1, [there.bad])
        assert WHY in told["ledgers"][there.bad]
        # Status, explanation and metrics say it, and take it back once it can be read again.
        found = await overview(there.store, clock=there.client.clock)
        assert found.unreadable is not None
        assert found.unreadable.sentence().startswith(f"ledger {there.bad}: {WHY}")
        said = [one.what for one in problems([], json.loads(json.dumps(asdict(found))))]
        assert any(f"ledger {there.bad} cannot be read" in one and WHY in one for one in said)
        good = there.world.cluster.ledgers[there.ids[0]].data
        there.world.cluster.ledgers[there.bad].data = good
        await ReplicationMarks(there.store).trigger()
        await until(
            lambda: last_unreadable(there.store), right=lambda note: note is None, limit_s=LIMIT_S
        )
        assert stats.ledgers_unreadable == 0
        await ended(running)

    scene(play)


def auditor_checks_go_through_all(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        stats = AutorecoveryStats()
        checks = ("ledger", "replicas", "placement")
        intervals = {f"{name}_check_interval_s": 1e6 for name in checks}
        running = await run_auditor(there, stats, **intervals)
        await until(
            lambda: (stats.ledger_checks, stats.replicas_checks, stats.placement_checks),
            right=lambda done: done == (1, 1, 1),
            limit_s=LIMIT_S,
        )
        assert (stats.store_errors, stats.ledgers_unreadable) == (0, 1)
        await ended(running)

    scene(play)


def auditor_passes_a_broken_mark(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        stats, broken = AutorecoveryStats(), there.ids[0]
        await broken_mark(there.store, broken)
        await there.lost()
        await asyncio.sleep(30)
        running = await run_auditor(there, stats)
        await until(lambda: stats.audits, right=lambda count: count > 0, limit_s=LIMIT_S)
        assert await there.locks.marked(there.ids[2]) is not None
        assert set(there.told("ledgers_unreadable")[0]["ledgers"]) == {broken, there.bad}
        await ended(running)

    scene(play)


def auditor_begins_with_a_broken_delay(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        marks, stats = ReplicationMarks(there.store), AutorecoveryStats()
        await marks.set_delay(1)
        path = f"{marks.root}/lostBookieRecoveryDelay"
        await there.store.tree.commit(Put(path, b"soon"))
        running = await run_auditor(there, stats)
        await until(lambda: stats.audits, right=lambda count: count > 0, limit_s=LIMIT_S)
        assert there.told("delay_unreadable")
        assert "'soon'" in (await overview(there.store)).damaged[0]
        assert (await explain_ledger(there.client, there.ids[0])).delay_s == 0
        await ended(running)

    scene(play)


def worker_heals_all_others(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        lost = await there.lost()
        await asyncio.sleep(30)
        for ledger_id in there.ids:
            await there.locks.mark(ledger_id, [lost])
        running = await _work(there)
        for well in (there.ids[0], there.ids[2]):
            await until(
                lambda well=well: there.locks.marked(well),  # type: ignore[misc]
                right=lambda mark: mark is None,
                limit_s=LIMIT_S,
            )
            assert lost not in await there.members(well)
        await asyncio.sleep(200)
        failure = await last_failure(there.store, there.bad)
        assert failure is not None
        assert WHY in failure.reason
        # Only one ledger is bad, not the store. It is retried at growing intervals.
        assert not there.told("worker_failed")
        assert 5 <= failure.attempts <= 12
        await ended(running)

    scene(play)


def worker_passes_a_broken_mark(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        lost, broken = await there.lost(), there.ids[0]
        await asyncio.sleep(30)
        await broken_mark(there.store, broken)
        await there.locks.mark(there.ids[2], [lost])
        running = await _work(there)
        await until(
            lambda: there.locks.marked(there.ids[2]),
            right=lambda mark: mark is None,
            limit_s=LIMIT_S,
        )
        await asyncio.sleep(200)
        failure = await last_failure(there.store, broken)
        assert failure is not None
        assert "its mark cannot be read" in failure.reason
        assert 5 <= failure.attempts <= 12
        assert not there.told("worker_failed")
        await ended(running)

    scene(play)


def worker_does_not_spin_on_a_stray_mark(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        await stray_mark(there.store, at=5, of=7)
        root = ReplicationMarks(there.store).root
        await there.store.tree.make_path(f"{root}/ledgers/urL0000000009")
        running = await _work(there)
        await asyncio.sleep(400)
        failure = await last_failure(there.store, 5)
        assert failure is not None
        assert "urL0000000007 is in the place of the mark of ledger 5" in failure.reason
        assert 5 <= failure.attempts <= 12, "the pauses between attempts grow"
        assert [one["path"] for one in there.told("mark_malformed")] == [
            f"{root}/ledgers/urL0000000009"
        ]
        assert await there.store.tree.exists(f"{root}/ledgers/urL0000000009"), "nobody deletes it"
        await forget_old_failures(there.client, there.locks)
        assert await last_failure(there.store, 5) is not None, "the item is unchanged"
        await ended(running)

    scene(play)


async def _work(there: Scene) -> asyncio.Task[None]:
    worker = Autorecovery(
        there.client,
        "worker",
        settings=AutorecoverySettings(backoff_s=1.0, poll_s=1.0, open_grace_s=2.0),
        auditor=False,
        clock=there.client.clock,
        rng=random.Random(1),
        log=there.log,
    )
    return asyncio.ensure_future(worker.run())


def failures_are_forgotten_beside_a_broken_mark(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        await broken_mark(there.store, 5)
        for ledger_id in (4, 5, 6):
            await note_failure(there.store, ledger_id, LastFailure("x", 1, 1, 1, "w"))
        await forget_old_failures(there.client, there.locks)
        left = [await last_failure(there.store, one) for one in (4, 5, 6)]
        assert [one is None for one in left] == [True, False, True]

    scene(play)


def marks_are_listed_and_counted(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        await there.locks.mark(3, ["a:1"])
        await broken_mark(there.store, 4)
        await stray_mark(there.store, at=5, of=7)
        await there.locks.mark(6, ["a:1"])
        await note_failure(there.store, 4, LastFailure("broken", 1, 1, 1, "w"))
        found = {one.ledger: one async for one in marked_ledgers(there.store)}
        assert list(found) == [3, 4, 5, 6]
        assert "cannot be decoded" in found[4].sentence()
        assert "is not its mark" in found[5].sentence()
        root = ReplicationMarks(there.store).root
        await there.store.tree.make_path(f"{root}/ledgers/odd")
        whole = await overview(there.store)
        assert (whole.marked, whole.failing) == (4, 1)
        (damaged,) = whole.damaged
        assert damaged.startswith(f"{root}/ledgers/odd is not a valid mark")
        client = there.client

        async def connect() -> quire.Client:
            return client

        view = ClusterView(client.clock.monotonic, no_fetch)
        for routes in (
            QuireRoutes(connect, Jobs(client.clock), view, "x").marked,
            DashboardRoutes(connect, Jobs(client.clock), view, "x").work,
        ):
            answer = await routes(NO_CALL)
            listed = answer["marked"] if "marked" in answer else answer["ledgers"]
            assert [one["ledger"] for one in listed] == [3, 4, 5, 6]
        apache = ClusterRoutes(connect, Jobs(client.clock), "x")
        assert await apache.marked(NO_CALL) == [3, 4, 5, 6]
        assert (await cluster_facts(client))["clusterUnderReplicated"]
        await view.close()

    scene(play)


async def no_fetch(*_: Any, **__: Any) -> Any:
    raise AssertionError("no bookie has an HTTP server")


def a_vote_that_makes_no_sense(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        tree, root = there.store.tree, f"{ReplicationMarks(there.store).root}/auditorelection"
        await tree.make_path(f"{root}/V_0000000000", b"{{{")
        found = await auditor_of(there.store)
        assert found is not None
        assert "cannot be decoded" in found.owner
        assert (await overview(there.store)).auditor == found.owner

    scene(play)


# -- jobs -------------------------------------------------------------------------------------


def recover_does_all_others(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        lost = await there.lost()
        await asyncio.sleep(30)
        done = await recover_bookie(there.client, there.locks, lost, options=QUICK)
        assert done.ledgers == len(done.moves) == 2
        assert not done.complete, "the ledger that cannot be read may name the bookie"
        assert [one.ledger for one in done.unreadable] == [there.bad]
        assert WHY in done.unreadable[0].why
        assert done.as_json()["left"]["unreadable"] == 1

    scene(play)


def decommission_keeps_the_cookie(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        bookie = sorted(await there.members(there.ids[0]))[0]

        async def run() -> Any:
            now_ms = there.client.clock.now_ms
            return await decommission(
                there.client, there.locks, bookie, owner="x", now_ms=now_ms, options=QUICK
            )

        good = there.world.cluster.ledgers[there.ids[0]].data
        found = await run()
        assert not found.drained
        assert not found.cookie_removed
        assert found.moved.unreadable_count == 1
        for well in (there.ids[0], there.ids[2]):
            assert bookie not in await there.members(well), "all other work is done"
        assert await there.store.read_cookie(bookie)
        # Once it can be read again, it names the bookie after all: nothing was lost.
        there.world.cluster.ledgers[there.bad].data = good
        found = await run()
        assert found.drained
        assert found.cookie_removed
        assert bookie not in await there.members(there.bad)

    scene(play)


def rebalance_leaves_it_out(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        done = await rebalance(there.client, there.locks, random.Random(1))
        assert done.plan.before
        assert not done.left
        assert [one.ledger for one in done.unreadable] == [there.bad]
        assert done.as_json()["unreadable"] == 1

    scene(play)


def risks_are_counted(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        lost = await there.lost()
        others = {bookie_id(name) for name in there.world.disks} - {lost}
        found = [one async for one in at_risk(there.client, others, {"x": {lost}})][-1]
        assert (found.ledgers, found.lacking, found.skipped) == (2, 2, 1)
        assert found.skipped_first[0][0] == there.bad
        view = ClusterView(there.client.clock.monotonic, no_fetch, wait_s=5.0)
        seen = await view.risks.of(there.client, others, {"x": {lost}})
        assert seen == found
        await view.close()

    scene(play)


def audit_reads_all_others(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        audit, client = Audit(), there.client
        for piece in audit.looking(there.ids):
            audit.saw(await audit_pieces.look(client, piece))
        there.poison(there.ids[2])  # In the meantime.
        for turn in audit.reading():
            for piece in turn:
                audit.has_read(await audit_pieces.read(client, piece))
        assert audit.entries == 3 * 20
        assert set(audit.unread.named) == {there.bad, there.ids[2]}
        assert await audit.findings(client) == []

    scene(play)


def bookies_that_are_named_are_found(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        bookie, unread = sorted(await there.members(there.ids[0]))[0], Unread()
        found = [
            ledger_id
            async for page in pages_naming(there.store, bookie, lambda count: None, unread)
            for ledger_id, _ in page
        ]
        assert there.ids[0] in found
        assert there.bad not in found
        assert list(unread.named) == [there.bad]

    scene(play)


def a_directory_is_kept(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        bookie = sorted(await there.members(there.ids[0]))[0]
        here = [set(there.world.bookies[bookie.partition(":")[0]].store.ledger_ids())]
        holder = KnownBookie(bookie, "", ("/a", "/b"), 0)
        removal = DirectoryRemoval(holder, "/a", [], here, {})
        with pytest.raises(UsageError, match=f"ledger {there.bad} cannot be read .*format 9"):
            await removal.check_not_needed(there.store)

    scene(play)


def bookie_keeps_what_it_cannot_judge(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        bookies = there.world.bookies
        name = next(one for one in sorted(bookies) if there.bad in bookies[one].store.ledger_ids())
        bookie, clock = bookies[name], there.client.clock
        instance = await there.store.instance_id()
        here = set(bookie.store.ledger_ids())
        passes = OverReplicated(
            bookie.store, there.store, clock, bookie_id(name), instance, bookie.collection
        )
        for _ in range(2):
            assert await passes.collect(there.log) == []
        assert list(passes.unread.named) == [there.bad]
        assert there.told("over_replicated_unreadable")
        assert set(bookie.store.ledger_ids()) == here
        reports = DamageReports(
            bookie.store, there.store, clock, bookie_id(name), instance, bookie.collection
        )
        await reports.report(there.log)

    scene(play)


# -- lists over HTTP --------------------------------------------------------------------------


def http_lists_name_it(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        client = there.client

        async def connect() -> quire.Client:
            return client

        view = ClusterView(client.clock.monotonic, no_fetch)
        apache = ClusterRoutes(connect, Jobs(client.clock), "x")
        found = await apache.list(Call({}, {"print_metadata": True}, {}))
        assert set(found) == {str(one) for one in there.ids}
        assert WHY in found[str(there.bad)]["error"]
        ours = await QuireRoutes(connect, Jobs(client.clock), view, "x").ledgers(NO_CALL)
        assert [one["ledger_id"] for one in ours["ledgers"]] == there.ids
        assert WHY in ours["ledgers"][1]["error"]
        await view.close()

    scene(play)


def the_list_of_marked_ledgers_goes_on(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        client = there.client

        async def connect() -> Any:
            return client

        for ledger_id in there.ids:
            await mark_ledger(there.store, ledger_id, ("b:1",), 1)
        view = ClusterView(client.clock.monotonic, no_fetch)
        routes = QuireRoutes(connect, Jobs(client.clock), view, "x")
        ours = await routes.ledgers(Call({}, {"replication": "marked"}, {}))
        named = {one["ledger_id"]: one for one in ours["ledgers"]}
        assert set(named) >= set(there.ids) - {there.bad}
        await view.close()

    scene(play)


def the_index_of_bookies_counts_it(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        index = LedgerIndex(there.client.clock.monotonic, wait_s=60.0)
        found = await index.of(there.client)
        assert (found.ledgers, found.skipped) == (len(there.ids) - 1, 1)
        await index.close()

    scene(play)


def a_list_of_datasets_names_it(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        async def connect() -> Any:
            return there.client

        await there.store.write_value((DATASETS, "broken"), b"{{{", None)
        answer = await ContentRoutes(connect).datasets(NO_CALL)
        assert [one["name"] for one in answer["datasets"]] == ["broken"]
        assert answer["datasets"][0]["error"]

    scene(play)


# -- commands ---------------------------------------------------------------------------------


def ledger_list_goes_on(tmp_path: Path) -> None:
    file = File(tmp_path)
    result = file.run("ledger", "list", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["ledger_id"] for one in lines] == file.ids
    assert WHY in lines[1]["error"]
    assert "state" in lines[2]
    assert result.exit_code == 1
    assert f"ledger {file.bad}" in result.stderr
    assert file.run("ledger", "list").exit_code == 0, "ids are known"


def shell_lists_go_on(tmp_path: Path) -> None:
    file = File(tmp_path)
    for words in (
        ("listledgers", "-meta"),
        ("listledgers", "-bookieid", "b:3181"),
        ("recover", "-query", "b:3181"),
        ("updateBookieInLedger", "-srcBookie", "b:3181", "-destBookie", "x:3181", "--dry-run"),
    ):
        result = file.run("shell", *words)
        for well in (file.ids[0], file.ids[2]):
            assert str(well) in result.stdout, words
        assert result.exit_code == 1, words
        assert f"ledger {file.bad} skipped" in result.stderr, words


def shell_restores_metadata_that_cannot_be_read(tmp_path: Path) -> None:
    file, saved = File(tmp_path, b"nonsense"), tmp_path / "saved"
    dump = file.run("shell", "ledgermetadata", "-l", str(file.ids[0]), "-dumptofile", str(saved))
    assert dump.exit_code == 0
    bad = ("shell", "ledgermetadata", "-l", str(file.bad))
    assert file.run(*bad, "-restorefromfile", str(saved)).exit_code == 1, "without -update"
    assert file.run(*bad, "-restorefromfile", str(saved), "-update").exit_code == 0
    assert file.run("ledger", "list", "--json").exit_code == 0


def shell_keeps_metadata_of_a_later_version(tmp_path: Path) -> None:
    file, saved = File(tmp_path), tmp_path / "saved"
    file.run("shell", "ledgermetadata", "-l", str(file.ids[0]), "-dumptofile", str(saved))
    words = ("-l", str(file.bad), "-restorefromfile", str(saved), "-update")
    result = file.run("shell", "ledgermetadata", *words)
    assert result.exit_code == 1
    assert WHY in result.stderr
    assert "restore" not in result.stderr
    assert file.run("ledger", "list", "--json").exit_code == 1


def cookies_are_kept(tmp_path: Path) -> None:
    file = File(tmp_path)

    async def cookie(store: Any) -> None:
        made = Cookie.of("z:3181", ["/z"], ["/z"], await store.instance_id(), None)
        await store.write_cookie("z:3181", encode(made), None)
        await store.write_cookie("y:3181", b"nonsense", None)

    in_store(file.uri, cookie)
    words = ("bookie", "cookie", "delete", "z:3181", "--metadata", file.uri, "--yes")
    result = file.run(*words)
    assert result.exit_code != 0
    assert f"the metadata of ledger {file.bad} cannot be read" in result.stderr
    assert WHY in result.stderr
    assert "--force" not in result.stderr
    shown = file.lines("bookie", "cookie", "show", "--metadata", file.uri, "--json")
    assert [bool(one["problems"]) for one in shown] == [True, False], "one of them is nonsense"


def autorecovery_lists_go_on(tmp_path: Path) -> None:
    file = File(tmp_path)

    async def mark(store: Any) -> None:
        from quire.replication.marks.locks import ReplicationLocks

        locks = ReplicationLocks(store, "x", SystemClock())
        await locks.mark(3, ["a:3181"])
        await broken_mark(store, 4)
        await locks.mark(6, ["a:3181"])
        await store.tree.make_path(f"{locks.root}/ledgers/odd")

    in_store(file.uri, mark)
    result = file.run("autorecovery", "list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["3", "4", "6"]
    assert "ledgers/odd is not a valid mark" in result.stderr
    shell = file.run("shell", "listunderreplicated")
    assert shell.exit_code == 0
    assert "count: 3" in shell.stdout
    status = file.run("autorecovery", "status")
    assert status.exit_code == 0
    assert "damaged: " in status.stdout


def errors_name_the_ledger(tmp_path: Path) -> None:
    file = File(tmp_path)
    for words in (
        ("ledger", "show", str(file.bad)),
        ("explain", "ledger", str(file.bad)),
        ("shell", "ledgermetadata", "-l", str(file.bad)),
    ):
        result = file.run(*words)
        assert result.exit_code != 0
        assert f"the metadata of ledger {file.bad} cannot be read" in result.stderr, words
        assert "No bookie deletes entries of" in result.stderr, words


def force_deletes_it(tmp_path: Path) -> None:
    for name, words in (
        ("cli", ("ledger", "delete", "{}", "--yes", "--force")),
        ("shell", ("shell", "deleteledger", "-l", "{}", "-force")),
    ):
        (tmp_path / name).mkdir()
        file = File(tmp_path / name)
        result = file.run(*(word.format(file.bad) for word in words))
        assert result.exit_code == 0, result.stderr
        left = file.run("ledger", "list").stdout.split()
        assert left == [str(one) for one in file.ids if one != file.bad]

    async def play(there: Scene) -> None:
        async def connect() -> Any:
            return there.client

        routes = ClusterRoutes(connect, Jobs(SystemClock()), "x")
        with pytest.raises(UnreadableMetadataError):
            await routes.delete(Call({}, {"ledger_id": there.bad}, {}))
        await routes.delete(Call({}, {"ledger_id": there.bad, "force": True}, {}))
        assert there.bad not in [one async for one in there.client.list_ledgers()]

    scene(play)


def a_new_ledger_does_not_stumble_over_it(tmp_path: Path) -> None:
    async def play(there: Scene) -> None:
        metadata = await there.store.read_ledger(there.ids[0])
        with pytest.raises(quire.errors.LedgerExistsError):
            await there.store.create_ledger(metadata.value, there.bad)
        made, _ = await there.store.create_ledger(metadata.value)
        assert made not in there.ids
        with pytest.raises(UnreadableMetadataError) as caught:
            await explain_ledger(there.client, there.bad)
        assert (caught.value.ledger_id, caught.value.version is not None) == (there.bad, True)

    scene(play)


# -- the table --------------------------------------------------------------------------------

Play = Callable[[Path], None]

PASSES: dict[str, tuple[Play, ...]] = {
    "cli/cluster/destroyed.py _Look.run": (what_is_destroyed_is_named,),
    "cli/servers/autorecovery.py list_marked": (autorecovery_lists_go_on,),
    "cli/bookie/cookie.py _stored_cookies": (cookies_are_kept,),
    "cli/bookie/replace.py _loss": (bookies_that_are_named_are_found,),
    "cli/bookie/identity.py pages_naming": (bookies_that_are_named_are_found,),
    "cli/bookie/identity.py ledgers_naming": (cookies_are_kept,),
    "cli/bookie/identity.py check_not_needed": (cookies_are_kept,),
    "cli/ledger/manage.py list_ledgers": (ledger_list_goes_on, errors_name_the_ledger),
    "cli/shell/ledgers.py each_metadata": (shell_lists_go_on,),
    "cli/shell/ledgers.py list_ledgers": (
        shell_lists_go_on,
        shell_restores_metadata_that_cannot_be_read,
        shell_keeps_metadata_of_a_later_version,
    ),
    "cli/shell/rename.py _rename": (shell_lists_go_on,),
    "cli/shell/replicas.py _query": (shell_lists_go_on,),
    "cli/shell/replicas.py list_underreplicated": (autorecovery_lists_go_on,),
    "bookie/background/damage.py DamageReports._look_at_everything": (
        bookie_keeps_what_it_cannot_judge,
    ),
    "bookie/directories/replacement.py DirectoryRemoval.check_not_needed": (a_directory_is_kept,),
    "http/routes/cluster.py ClusterRoutes.list": (http_lists_name_it,),
    "http/routes/cluster.py ClusterRoutes.marked": (marks_are_listed_and_counted,),
    "http/routes/cluster.py cluster_facts": (marks_are_listed_and_counted,),
    "http/routes/dashboard.py DashboardRoutes.work": (marks_are_listed_and_counted,),
    "http/watch/observations.py MarkCounts._count": (marks_are_listed_and_counted,),
    "http/views/ledger_list.py _candidates": (http_lists_name_it,),
    "http/views/ledger_list.py _marked": (the_list_of_marked_ledgers_goes_on,),
    "http/watch/ledger_index.py LedgerIndex._read": (the_index_of_bookies_counts_it,),
    "http/routes/contents.py ContentRoutes.datasets": (a_list_of_datasets_names_it,),
    "http/routes/quire_api.py QuireRoutes.marked": (marks_are_listed_and_counted,),
    "http/watch/observations.py LedgerRisks._count": (risks_are_counted,),
    "replication/explain/at_risk.py at_risk": (risks_are_counted,),
    "replication/autorecovery/auditor.py Auditor._pages": (
        auditor_marks_all_others,
        auditor_checks_go_through_all,
        auditor_passes_a_broken_mark,
        auditor_begins_with_a_broken_delay,
    ),
    "replication/moves/decommission.py decommission": (decommission_keeps_the_cookie,),
    "replication/moves/decommission.py _Decommissioning.run_pass": (decommission_keeps_the_cookie,),
    "replication/autorecovery/election.py auditor_of": (a_vote_that_makes_no_sense,),
    "replication/moves/recover.py moves_of": (recover_does_all_others,),
    "replication/moves/recover.py recover_bookie": (
        recover_does_all_others,
        audit_reads_all_others,
    ),
    "replication/moves/rebalance.py rebalance": (rebalance_leaves_it_out,),
    "replication/moves/rebalance.py plan_for": (rebalance_leaves_it_out,),
    "replication/explain/status.py marked_ledgers": (marks_are_listed_and_counted,),
    "replication/explain/status.py count_marks": (marks_are_listed_and_counted,),
    "replication/explain/status.py overview": (marks_are_listed_and_counted,),
    "replication/autorecovery/worker.py ReplicationWorker._pick": (
        worker_heals_all_others,
        worker_passes_a_broken_mark,
        worker_does_not_spin_on_a_stray_mark,
    ),
    "replication/autorecovery/worker.py forget_old_failures": (
        failures_are_forgotten_beside_a_broken_mark,
    ),
    "client/client.py LedgerClient.list_ledgers": (
        a_new_ledger_does_not_stumble_over_it,
        force_deletes_it,
    ),
}
"""The functions that list items and read them, and what is played for each."""

NAMES_ONLY = {
    "cli/common/completion.py _bookies": "names of cookies",
    "cli/common/completion.py _ledgers": "ids",
    "http/routes/contents.py ContentRoutes.buckets": "names",
    "http/views/cluster_settings.py _orders": "names",
    "cli/cluster/metadata.py erase_now": "it deletes nodes by name, and reads none",
    "cli/cluster/metadata.py _clusters_inside": "names, and whether a LAYOUT is that of ledgers",
    "cli/cluster/metadata.py _clusters_inside.children": "names",
    "cli/cluster/bookies.py _bookies": "names of cookies",
    "cli/shell/cluster.py list_bookies": "names of cookies",
    "bookie/background/damage.py DamageReports._check_complete": "ids",
    "bookie/background/garbage.py _find_unnamed": "a listed ledger is alive, readable or not",
    "blocking/client.py Client.list_ledgers": "ids",
    "http/views/bookie_list.py bookie_facts": "names of cookies",
    "cli/bookie/space.py _uncollected": "ids",
    "replication/autorecovery/auditor.py Auditor._look": "names of cookies",
    "replication/autorecovery/auditor.py Auditor._prepare": "names of cookies",
    "replication/autorecovery/election.py Election._votes": "names; values are read one by one",
    "replication/marks/locks.py ReplicationLocks.strays": "names",
    "replication/marks/marks.py ReplicationMarks._names": "names; `walk` passes over no-ids",
    "replication/marks/marks.py ReplicationMarks.locked": "names that are no locks are left out",
    "replication/moves/recover.py _known": "names of cookies",
    "replication/repair/deleted_ledger.py _held": "names of cookies",
    "replication/marks/pauses.py Pauses.all": "what cannot be understood pauses all the same",
    "replication/marks/job_announcements.py running_jobs": "what cannot be understood is left out",
    "replication/marks/copy_notes.py copy_notes": "what cannot be understood is left out",
    "replication/marks/copy_notes.py forget_copy": "names",
    "replication/marks/notes.py failing_ledgers": "names that are no ids are left out",
    "replication/marks/notes.py _repaired": "what cannot be understood is left out",
}
"""The functions that list items and need nothing of them that could be unreadable, and why."""

LISTING = {
    "at_risk", "children", "count_marks", "each_metadata", "failing_ledgers", "ledgers_naming",
    "list_cookies", "list_ledgers", "list_values", "marked_ledgers", "moves_of", "pages_naming",
    "plan_for", "walk",
}  # fmt: skip
"""Calls that list items."""
ELSEWHERE = ("metadata/", "testing/", "streams/", "spark/", "client/datasets/")
"""Drivers, test tools, and folders whose passes have their own tests."""


def passes() -> Iterator[str]:
    """Return every function that lists items, as `file function`."""
    root = Path(quire.__file__).parent
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root).as_posix()
        if not name.startswith(ELSEWHERE):
            yield from _listing(ast.parse(file.read_text(encoding="utf-8")), name, ())


def _listing(node: ast.AST, file: str, within: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        within = (*within, node.name)
    if isinstance(node, ast.Call):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in LISTING:
            yield f"{file} {'.'.join(within)}"
    for below in ast.iter_child_nodes(node):
        yield from _listing(below, file, within)


def test_every_background_pass_has_a_case() -> None:
    found, known = set(passes()), {*PASSES, *NAMES_ONLY}
    assert found - known == set(), "a new pass: poison one of its items, in PASSES"
    assert known - found == set(), "these functions no longer list anything"


PLAYS = sorted({play for plays in PASSES.values() for play in plays}, key=lambda one: one.__name__)


@pytest.mark.parametrize("play", PLAYS, ids=lambda one: one.__name__)
def test_one_unreadable_item_stops_no_pass(play: Play, tmp_path: Path) -> None:
    play(tmp_path)
