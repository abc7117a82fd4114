"""The bookie to which a directory belongs: what is refused, and which command repairs it."""

from __future__ import annotations

import json
import random
import re
import shlex
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quire.bookie.directories.identity import (
    check_identity,
    check_not_registered,
    create_identity,
    remembered_id,
)
from quire.cli.main import cli
from quire.codec.metadata.cookie import Cookie, decode, encode
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.registration import is_bookie_id
from quire.errors import CookieError, KeyExistsError, StorageError, UsageError
from quire.metadata.bookies.directories import (
    BookieDirectories,
    forget_bookie,
    read_directories,
    write_directories,
)
from quire.metadata.bookies.orders import Order, What, give_order, stored_order
from quire.metadata.interface import BookieAddress, MetadataStore
from quire.storage.directory import mark_log_begun, read_identity
from quire.storage.disk import RealDisk
from quire_simulator.machine.disk import SimDisk
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.bookie import free_port, memory_metadata, running_bookie
from tests.support.metadata.lagging import LaggingServer
from tests.support.metadata.metadata import in_store

ID = "127.0.0.1:3181"
RANDOM = random.Random(1).randbytes


class Place:
    """A directory, a cluster, and the commands on them."""

    def __init__(self, root: Path) -> None:
        self.uri = f"sqlite:///{root}/cluster.db"
        self.path = root / "data"
        self.in_store(_initialise)

    def in_store(self, work: Callable[[MetadataStore], Awaitable[Any]]) -> Any:
        return in_store(self.uri, work)

    def begun(self, bookie_id: str = ID) -> None:
        """A bookie that has served."""
        self.start(bookie_id)
        disk = RealDisk(self.path)
        identity = read_identity(disk)
        assert identity is not None
        mark_log_begun(disk, identity)
        (self.path / "log").mkdir()
        (self.path / "log" / f"{1:016x}.seg").write_bytes(bytes(8192))

    def start(self, bookie_id: str = ID, path: Path | None = None) -> None:
        self.in_store(
            lambda store: check_identity(RealDisk(path or self.path), store, bookie_id, RANDOM)
        )

    def refused(self, *named: str, bookie_id: str = ID, path: Path | None = None) -> CookieError:
        with pytest.raises(CookieError) as failed:
            self.start(bookie_id, path)
        for name in named:
            assert name in str(failed.value)
        return failed.value

    def repaired_by(self, error: CookieError, *words: str) -> None:
        """The command with these words that the error names."""
        commands = [shlex.split(one) for one in re.findall(r"`(quire [^`]*)`", error.remedy)]
        (command,) = [one for one in commands if one[2 : 2 + len(words)] == list(words)]
        done = self(*command[2:])
        assert done.exit_code == 0, done.stderr

    def __call__(self, *words: str, stdin: str = "") -> Result:
        """`quire bookie ...`"""
        return CliRunner().invoke(cli, ["bookie", *words], input=stdin)

    def run(self, *words: str) -> Result:
        """Run a command in this cluster."""
        return self(*words, "--metadata", self.uri)

    @property
    def version(self) -> Path:
        return self.path / "current" / "VERSION"

    def cluster(self, bookie_id: str = ID) -> Cookie:
        async def read(store: MetadataStore) -> bytes:
            return (await store.read_cookie(bookie_id)).value

        return decode(self.in_store(read))

    def snapshot(self) -> dict[str, bytes]:
        return {
            str(one.relative_to(self.path)): one.read_bytes()
            for one in sorted(self.path.rglob("*"))
            if one.is_file() and one.name != "LOCK"
        }


async def _initialise(store: MetadataStore) -> None:
    try:
        await store.initialise()
    except KeyExistsError:
        pass


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_METADATA", raising=False)


# -- every start ------------------------------------------------------------------------------


def test_a_lost_cookie_file_is_refused_until_a_command_rewrites_it(place: Place) -> None:
    place.begun()
    before = place.version.read_bytes()
    place.version.unlink()
    error = place.refused("VERSION is missing", "holds a log")
    place.repaired_by(error, "cookie", "create")
    assert place.version.read_bytes() == before
    place.start()


def test_a_damaged_cookie_file_is_refused_until_a_command_rewrites_it(place: Place) -> None:
    place.begun()
    before = place.version.read_bytes()
    place.version.write_bytes(b"5\nbookieHost: 3")
    error = place.refused(str(place.version), "damaged", "cookie create BOOKIE")
    with pytest.raises(CookieError, match="damaged"):
        remembered_id(RealDisk(place.path))
    assert place.run("cookie", "create", ID, "--dir", str(place.path)).exit_code == 0
    assert place.version.read_bytes() == before
    assert "cookie show" in error.remedy


def test_a_cookie_lost_in_the_cluster_is_refused_until_a_command_rewrites_it(place: Place) -> None:
    place.begun()
    before = place.cluster()
    place.in_store(lambda store: store.delete_cookie(ID))
    error = place.refused(ID, place.uri, "does not know", "bookie format")
    place.repaired_by(error, "cookie", "create")
    assert place.cluster() == before
    place.start()


def test_a_directory_mounted_at_another_path_is_refused_until_an_update(
    place: Place, tmp_path: Path
) -> None:
    place.begun()
    moved = tmp_path / "moved"
    place.path.rename(moved)
    error = place.refused(
        "journal directories", "ledger directories", str(place.path), str(moved), path=moved
    )
    place.repaired_by(error, "cookie", "update")
    place.start(path=moved)
    assert str(moved) in place.cluster().ledger_dirs


def test_differing_cookies_are_refused_until_a_command_updates_them(place: Place) -> None:
    """Apache's `cookie_update` may leave such cookies."""
    place.begun()
    other = Cookie.of(ID, ["/journal"], ["/a", "/b"], place.cluster().instance_id, ["/index"])
    place.in_store(lambda store: store.write_cookie(ID, encode(other), 0))
    error = place.refused(
        "differs from the one in", "/journal in the cluster", "/a, /b in the cluster", "/index"
    )
    place.repaired_by(error, "cookie", "update")
    place.start()
    place.in_store(lambda store: store.write_cookie(ID, b"5\n", 2))
    place.repaired_by(place.refused("cannot be decoded", "bookieHost"), "cookie", "update")
    place.start()


def test_no_command_moves_a_directory_to_another_cluster_by_mistake(
    place: Place, tmp_path: Path
) -> None:
    place.begun()
    mine = place.cluster().instance_id
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other")
    other.path = place.path
    other.in_store(lambda store: store.write_cookie(ID, place.version.read_bytes(), None))
    before = place.snapshot()
    error = other.refused("another cluster", "instance id", str(mine), "restore it from a backup")
    assert "format" not in str(error)  # it may be the store that is wrong
    for command in (("cookie", "update", "--dir"), ("format", "--delete-cookie", "--yes", "--dir")):
        done = other.run(*command, str(place.path))
        assert (done.exit_code, str(mine) in done.stderr) == (1, True)
    assert place.snapshot() == before
    assert other.cluster().instance_id == mine
    place.start()


def test_a_cookie_without_an_instance_id(place: Place) -> None:
    """If the cluster got its id later, the operator must confirm that it is the same."""
    place.begun()
    plain = encode(Cookie.of(ID, [str(place.path)], [str(place.path)]))
    place.version.write_bytes(plain)
    error = place.refused("instance id", "none in its cookie")
    assert place.run("cookie", "update", "--dir", str(place.path)).exit_code == 1
    assert place.version.read_bytes() == plain
    place.repaired_by(error, "cookie", "update")
    place.start()


def test_an_empty_directory_of_a_known_bookie_is_refused(place: Place, tmp_path: Path) -> None:
    place.begun()
    empty = tmp_path / "empty"
    error = place.refused("its data is gone", f"quire bookie decommission {ID}", path=empty)
    assert "registered" not in str(error)
    done = place.run("cookie", "create", ID, "--dir", str(empty))
    assert (done.exit_code, "has no log" in done.stderr) == (1, True)
    assert not (empty / "current").exists()


async def test_an_empty_directory_of_a_bookie_that_runs_elsewhere_is_refused() -> None:
    metadata = memory_metadata()
    await metadata.initialise()
    await check_identity(SimDisk(random.Random(1), "one"), metadata, ID, RANDOM)
    registration = await metadata.register_bookie(BookieAddress(ID, "10.0.0.9", 4000))
    with pytest.raises(CookieError, match=r"registered at 10\.0\.0\.9:4000"):
        await check_identity(SimDisk(random.Random(1), "two"), metadata, ID, RANDOM)
    await registration.close()


def test_the_directory_of_an_apache_bookie_is_refused(place: Place) -> None:
    place.path.mkdir()
    (place.path / "current").mkdir()
    for known in (False, True):
        made = place.run("cookie", "generate", ID, "--dir", str(place.path))
        place.version.write_bytes(made.stdout_bytes)
        if known:
            place.run("cookie", "create", ID, "--from", str(place.version))
        place.refused("Apache", "DIRECTORY")
    shown = json.loads(place.run("cookie", "show", "--dir", str(place.path), "--json").stdout)
    assert shown["directory"] == shown["cluster"]
    before = place.snapshot()
    done = place("format", "--dir", str(place.path), "--yes")
    assert (done.exit_code, "not recognised" in done.stderr) == (1, True)
    assert place.snapshot() == before


# -- the id that was chosen first -------------------------------------------------------------


async def test_the_id_stays_when_the_port_changes(tmp_path: Path) -> None:
    metadata = memory_metadata()
    async with running_bookie(tmp_path / "a", metadata=metadata) as first:
        chosen = first.bookie_id
    async with running_bookie(tmp_path / "a", metadata=metadata) as again:
        assert again.bookie_id == chosen
        address = (await metadata.bookies()).find(chosen)
        assert address is not None
        assert f"{address.host}:{address.port}" != chosen
        assert await metadata.list_cookies() == [chosen]


async def test_a_bookie_keeps_its_name_if_it_is_not_given_again(tmp_path: Path) -> None:
    metadata = memory_metadata()
    async with running_bookie(tmp_path / "a", metadata=metadata, bookie_id="rack2-a"):
        pass
    async with running_bookie(tmp_path / "a", metadata=metadata) as again:
        assert again.bookie_id == "rack2-a"
    with pytest.raises(CookieError, match="bookie id: other here, rack2-a in its cookie"):
        async with running_bookie(tmp_path / "a", metadata=metadata, bookie_id="other"):
            pass


# -- init -------------------------------------------------------------------------------------


def test_init_creates_only_new_bookies(place: Place, tmp_path: Path) -> None:
    words = ("init", "--dir", str(place.path), "--bookie-id", "alpha")
    done = place.run(*words)
    assert (done.exit_code, done.stdout) == (0, "alpha\n")
    assert decode(place.version.read_bytes()) == place.cluster("alpha")
    before = place.snapshot()
    again = place.run(*words)
    assert (again.exit_code, "belongs to bookie alpha already" in again.stderr) == (1, True)
    other = place.run("init", "--dir", str(tmp_path / "other"), "--bookie-id", "alpha")
    assert (other.exit_code, "knows a bookie with the id alpha already" in other.stderr) == (
        1,
        True,
    )
    assert not (tmp_path / "other" / "current").exists()
    assert place.snapshot() == before
    place.start("alpha")


def test_init_refuses_a_directory_with_other_files(place: Place) -> None:
    place.path.mkdir()
    (place.path / "letter.txt").write_text("Dear reader")
    done = place.run("init", "--dir", str(place.path))
    assert (done.exit_code, "letter.txt" in done.stderr) == (1, True)

    assert place.in_store(lambda store: store.list_cookies()) == []
    assert place.run("init", "--dir", str(place.path), "--bookie-id", "a b").exit_code == 2


def test_init_withdraws_the_order_of_a_decommissioned_bookie_of_that_id(place: Place) -> None:
    """Requests to the former bookie do not apply to the new one."""

    async def order(store: MetadataStore) -> None:
        await give_order(store, "alpha", Order(What.RETIRED, 1, "host"), None)

    place.in_store(order)
    place.run("init", "--dir", str(place.path), "--bookie-id", "alpha")
    assert place.in_store(lambda store: stored_order(store, "alpha")) is None


async def test_init_that_was_interrupted_is_finished_by_a_start() -> None:
    metadata = memory_metadata()
    await metadata.initialise()
    disk = SimDisk(random.Random(1), "disk")
    await create_identity(disk, metadata, ID, RANDOM)
    await metadata.delete_cookie(ID)  # as if it had never been written
    with pytest.raises(CookieError, match="belongs to bookie"):
        await create_identity(disk, metadata, ID, RANDOM)
    await check_identity(disk, metadata, ID, RANDOM)
    assert await metadata.list_cookies() == [ID]


# -- format -----------------------------------------------------------------------------------


def test_format_erases_and_the_cluster_still_refuses(place: Place) -> None:
    place.begun()
    (place.path / "letter.txt").write_text("Dear reader")
    before = place.snapshot()
    words = ("format", "--dir", str(place.path), "--json")
    planned = json.loads(place(*words, "--dry-run").stdout)
    assert place.snapshot() == before
    assert place(*words).exit_code == 2  # The command cannot ask for confirmation.
    assert place.snapshot() == before
    done = json.loads(place(*words, "--yes").stdout)
    assert planned == {**done, "dry_run": True}
    assert done["bookie"] == ID
    assert done["files"][0] == "current/VERSION"
    assert done["files"][-1] == "current/DIRECTORY"
    assert done["bytes"] > 8192
    assert done["kept"] == ["letter.txt"]
    assert list(place.snapshot()) == ["letter.txt"]
    place.refused("its data is gone")


def test_format_with_the_cookie_allows_a_new_bookie(place: Place) -> None:
    place.begun()
    words = ("format", "--dir", str(place.path), "--delete-cookie", "--yes")
    assert place.run(*words, "--dry-run").exit_code == 0
    assert place.cluster().bookie_id == ID
    assert place(*words).exit_code == 2
    assert place.run(*words).exit_code == 0
    assert place.in_store(lambda store: store.list_cookies()) == []
    place.start()
    assert place.cluster().bookie_id == ID


def test_format_refuses_while_a_bookie_runs_there(place: Place) -> None:
    place.begun()
    disk = RealDisk(place.path)
    disk.lock()
    before = place.snapshot()
    for words in (("format", "--yes", "--force"), ("cookie", "update"), ("cookie", "create", ID)):
        done = (
            place.run(*words, "--dir", str(place.path))
            if words[0] == "cookie"
            else place(*words, "--dir", str(place.path))
        )
        assert (done.exit_code, "in use by a running bookie" in done.stderr) == (1, True)
    assert place.snapshot() == before
    disk.close()


def test_an_interrupted_format_never_leaves_a_bookie_that_starts(place: Place) -> None:
    """After each file that is gone, a start refuses, and another format ends it."""
    from quire.bookie.directories.identity import COOKIE_FILE
    from quire.storage.inspect.erase import ErasePlan, erase, plan_erase

    place.begun()
    disk = RealDisk(place.path)
    plan = plan_erase(disk, COOKIE_FILE)
    for name in plan.files[:-1]:
        erase(disk, ErasePlan((name,), 0, ()))
        with pytest.raises((CookieError, StorageError)):
            place.start()
    assert place("format", "--dir", str(place.path), "--yes").exit_code == 0
    assert place.snapshot() == {}


def _named(bookie_id: str) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1,
        segments=(Segment(0, (bookie_id,)),),
    )  # fmt: skip


def test_a_bookie_that_ledgers_name_keeps_its_cookie(place: Place) -> None:
    place.begun()
    place.in_store(lambda store: store.create_ledger(_named(ID), 7))
    place.in_store(lambda store: store.create_ledger(_named("other:1"), 8))
    for words in (
        ("cookie", "delete", ID),
        ("format", "--delete-cookie", "--yes", "--dir", str(place.path)),
    ):
        done = place.run(*words)
        assert done.exit_code == 2
        assert "(7)" in done.stderr
        assert f"quire bookie decommission {ID}" in done.stderr
    assert place.cluster().bookie_id == ID
    assert place.version.exists()
    assert place.run("cookie", "delete", ID, "--force", "--dry-run").exit_code == 0
    assert place.cluster().bookie_id == ID
    assert place.run("cookie", "delete", ID, "--force").exit_code == 0
    assert place.in_store(lambda store: store.list_cookies()) == []
    gone = place.run("cookie", "delete", ID)
    assert (gone.exit_code, "no cookie" in gone.stderr) == (1, True)


async def test_a_bookie_that_is_registered_keeps_its_cookie() -> None:
    metadata = memory_metadata()
    await metadata.initialise()
    registration = await metadata.register_bookie(BookieAddress(ID, "127.0.0.1", 3182))
    with pytest.raises(UsageError, match=r"registered at 127\.0\.0\.1:3182"):
        await check_not_registered(metadata, ID)
    await registration.close()
    await check_not_registered(metadata, ID)


async def test_a_bookie_that_has_just_started_is_registered_although_the_server_lags() -> None:
    """Its cookie could be deleted, or one of its disks replaced."""
    metadata = memory_metadata()
    await metadata.initialise()
    late = MemoryStore(metadata.cluster)
    LaggingServer(late).fall_behind()
    await metadata.register_bookie(BookieAddress(ID, "127.0.0.1", 3182))
    with pytest.raises(UsageError, match=r"registered at 127\.0\.0\.1:3182"):
        await check_not_registered(late, ID)


# -- cookies ----------------------------------------------------------------------------------


def test_show_compares_the_cookie_of_a_directory_with_the_cluster(
    place: Place, tmp_path: Path
) -> None:
    place.begun()
    words = ("cookie", "show", "--dir", str(place.path))
    alone = place(*words)
    assert alone.exit_code == 0
    assert f"  bookie               {ID}\n" in alone.stdout
    both = place.run(*words, "--json")
    found = json.loads(both.stdout)
    assert (both.exit_code, found["problems"]) == (0, [])
    assert found["directory"] == found["cluster"]
    assert found["cluster"]["ledger_directories"] == [str(place.path)]
    other = Cookie.of(ID, ["/j"], ["/l"], place.cluster().instance_id)
    place.in_store(lambda store: store.write_cookie(ID, encode(other), 0))
    differing = place.run(*words)
    assert (differing.exit_code, "/l in the cluster" in differing.stderr) == (1, True)
    place.in_store(lambda store: store.delete_cookie(ID))
    missing = place.run(*words)
    assert (missing.exit_code, "the cluster has no cookie" in missing.stderr) == (1, True)
    empty = place("cookie", "show", "--dir", str(tmp_path))
    assert (empty.exit_code, "has no cookie" in empty.stderr) == (1, True)
    assert place("cookie", "show").exit_code == 2


def test_show_lists_all_cookies_of_a_cluster(place: Place) -> None:
    for name in ("b:1", "a:1"):
        made = encode(Cookie.of(name, ["/j"], ["/l", "/m"], None, ["/i"]))
        place.in_store(lambda store, name=name, made=made: store.write_cookie(name, made, None))
    found = [json.loads(line) for line in place.run("cookie", "show", "--json").stdout.splitlines()]
    assert [one["bookie"] for one in found] == ["a:1", "b:1"]
    assert found[0]["cluster"] == {
        "bookie": "a:1", "journal_directories": ["/j"], "ledger_directories": ["/l", "/m"],
        "index_directories": ["/i"], "instance_id": None, "layout_version": 5,
    }  # fmt: skip


def test_cookies_of_apache_bookies_are_created_and_updated(place: Place, tmp_path: Path) -> None:
    """The output of `generate` is valid for `create` and `update`, and equals that of Apache's
    tools.
    """
    file = tmp_path / "cookie"
    words = ("cookie", "generate", "h:1", "--dir", "/l", "--dir", "/m", "--journal-dir", "/j")
    assert place.run(*words, "-o", str(file)).exit_code == 0
    instance = place.in_store(lambda store: store.instance_id())
    assert file.read_text() == (
        '5\nbookieHost: "h:1"\njournalDir: "/j"\nledgerDirs: "2\\t/l\\t/m"\n'
        f'instanceId: "{instance}"\n'
    )
    create = ("cookie", "create", "h:1", "--from", str(file))
    assert place.run("cookie", "update", "h:1", "--from", str(file)).exit_code == 1
    assert place.run(*create, "--dry-run").exit_code == 0
    assert place.in_store(lambda store: store.list_cookies()) == []
    assert place.run(*create).exit_code == 0
    again = place.run(*create)
    assert (again.exit_code, "already" in again.stderr) == (1, True)
    wrong = place.run("cookie", "create", "h:2", "--from", str(file))
    assert (wrong.exit_code, "cookie of bookie h:1, not of h:2" in wrong.stderr) == (1, True)
    place.run(*words, "--index-dir", "/i", "-o", str(file))
    assert place.run("cookie", "update", "h:1", "--from", str(file), "--dry-run").exit_code == 0
    assert place.cluster("h:1").index_dirs is None
    done = place.run("cookie", "update", "h:1", "--from", str(file))
    assert (done.exit_code, "index directories: /i now" in done.stderr) == (0, True)
    assert encode(place.cluster("h:1")) == file.read_bytes()
    place("cookie", *words[1:], "--instance-id", "elsewhere", "-o", str(file))
    foreign = place.run("cookie", "update", "h:1", "--from", str(file))
    assert (foreign.exit_code, "elsewhere" in foreign.stderr) == (1, True)
    assert is_bookie_id(place.cluster("h:1").bookie_id)


def test_create_refuses_to_give_a_directory_the_cookie_of_another_bookie(
    place: Place, tmp_path: Path
) -> None:
    place.begun()
    other = encode(Cookie.of("h:2", ["/l"], ["/l"], place.cluster().instance_id))
    place.in_store(lambda store: store.write_cookie("h:2", other, None))
    both = place.run("cookie", "create", ID, "--dir", str(place.path))
    assert (both.exit_code, "and so has the cluster" in both.stderr) == (1, True)
    place.version.unlink()
    wrong = place.run("cookie", "create", "h:2", "--dir", str(place.path))
    assert (wrong.exit_code, "does not list" in wrong.stderr) == (1, True)
    nobody = place.run("cookie", "create", "h:3", "--dir", str(place.path))
    assert (nobody.exit_code, "neither" in nobody.stderr) == (1, True)
    assert not place.version.exists()
    dry = place.run("cookie", "create", ID, "--dir", str(place.path), "--dry-run")
    assert (dry.exit_code, place.version.exists()) == (0, False)


@pytest.mark.parametrize(
    ("journals", "indexes", "told"),
    [
        (["/j", "/k"], [], "also has the journal directories /j,/k:"),
        ([], ["/i"], "also has the index directories /i:"),
        (["/j"], ["/i"], "also has the journal directories /j and the index directories /i:"),
    ],
)
def test_update_keeps_the_journal_directories_of_an_apache_bookie(
    place: Place, journals: list[str], indexes: list[str], told: str
) -> None:
    """Apache's bookie would refuse to start with other directories in its cookie."""
    instance = place.in_store(lambda store: store.instance_id())
    data = [str(place.path)]
    its = encode(Cookie.of(ID, journals or data, data, instance, indexes or None))
    place.version.parent.mkdir(parents=True)
    place.version.write_bytes(its)
    place.in_store(lambda store: store.write_cookie(ID, its, None))
    for more in ((), ("--force",)):
        done = place.run("cookie", "update", "--dir", str(place.path), *more)
        assert (done.exit_code, told in done.stderr) == (1, True)
        assert "nothing was changed" in done.stderr
        assert "Apache's tools" in done.stderr
    assert place.version.read_bytes() == encode(place.cluster()) == its
    error = place.refused("no log of Quire", "Apache bookie")
    assert "cookie update" not in error.remedy


def test_update_moves_both_directories_of_an_apache_bookie_that_share_one_path(
    place: Place, tmp_path: Path
) -> None:
    """Its journal directory is the data directory, so both have moved."""
    instance = place.in_store(lambda store: store.instance_id())
    place.version.parent.mkdir(parents=True)
    its = encode(Cookie.of(ID, ["/old"], ["/old"], instance))
    place.version.write_bytes(its)
    place.in_store(lambda store: store.write_cookie(ID, its, None))
    assert place.run("cookie", "update", "--dir", str(place.path)).exit_code == 0
    new = Cookie.of(ID, [str(place.path)], [str(place.path)], instance)
    assert decode(place.version.read_bytes()) == place.cluster() == new


def test_update_repairs_the_journal_and_index_directories_of_quire_s_own_cookie(
    place: Place,
) -> None:
    """A bookie of Quire has no such directories, and does not start with them in its cookie."""
    place.begun()
    before = place.version.read_bytes()
    data = [str(place.path)]
    wrong = Cookie.of(ID, ["/j"], data, place.cluster().instance_id, ["/i"])
    place.version.write_bytes(encode(wrong))
    place.repaired_by(place.refused("journal directories", "/i"), "cookie", "update")
    assert place.version.read_bytes() == before
    place.start()


def test_the_remedy_in_the_error_replaces_a_damaged_list_of_directories(
    place: Place, tmp_path: Path
) -> None:
    """`update --dir` reads the list too, so it cannot be the remedy."""
    place.begun()
    before = place.version.read_bytes()
    damaged = before.replace(b'"1\\t', b'"2\\t')
    assert damaged != before
    place.version.write_bytes(damaged)
    place.in_store(lambda store: store.write_cookie(ID, damaged, 0))
    refused = place.run("cookie", "update", "--dir", str(place.path))
    assert (refused.exit_code, "the number at the beginning" in refused.stderr) == (1, True)
    generate, update = re.findall(r"`quire bookie ([^`]*)`", refused.stderr)
    file = str(tmp_path / "cookie")
    words = [{"FILE": file, "BOOKIE": ID}.get(one, one) for one in f"{generate} {update}".split()]
    at = words.index("update") - 1
    assert place.run(*words[:at], ID, "--dir", str(place.path)).exit_code == 0
    place.version.write_bytes(Path(file).read_bytes())
    assert place.run(*words[at:]).exit_code == 0
    assert encode(place.cluster()) == place.version.read_bytes() == before
    place.start()


def test_the_errors_of_create_name_commands_that_replace_a_cookie(
    place: Place, tmp_path: Path
) -> None:
    place.begun()
    create = ("cookie", "create", ID)
    there = place.run(*create, "--dir", str(place.path))
    file = tmp_path / "cookie"
    file.write_bytes(place.version.read_bytes())
    exists = place.run(*create, "--from", str(file))
    place.in_store(lambda store: store.write_cookie(ID, b"2\n/a\n", 0))
    damaged = place.run(*create, "--dir", str(place.path))
    for failed in (damaged, exists, there):
        assert failed.exit_code == 1
        (command,) = re.findall(r"`quire bookie (cookie update [^`]*)`", failed.stderr)
        done = place(*shlex.split(command.replace("FILE", str(file))))
        assert (done.exit_code, place.cluster()) == (0, decode(file.read_bytes())), done.stderr
    place.start()


def test_update_requires_and_writes_all_directories_of_a_cookie(
    place: Place, tmp_path: Path
) -> None:
    """All directories in the cookie must be named, and all get the same cookie."""
    paths = [tmp_path / "one", tmp_path / "two"]
    instance = place.in_store(lambda store: store.instance_id())
    old = encode(Cookie.of(ID, ["/a", "/b"], ["/a", "/b"], instance))
    for path in paths:
        (path / "current").mkdir(parents=True)
        (path / "current" / "VERSION").write_bytes(old)
    place.in_store(lambda store: store.write_cookie(ID, old, None))
    one, two = (("--dir", str(path)) for path in paths)
    less = place.run("cookie", "update", *one)
    told = f"lists 2 directories of bookie {ID} (/a, /b), but you gave 1; nothing was changed"
    assert (less.exit_code, told in less.stderr) == (1, True), less.stderr
    assert place.run("cookie", "update", *one, *two, "--dry-run").exit_code == 0
    assert (paths[0] / "current" / "VERSION").read_bytes() == old
    assert place.run("cookie", "update", *one, *two).exit_code == 0
    new = encode(Cookie.of(ID, [*map(str, paths)], [*map(str, paths)], instance))
    assert [(path / "current" / "VERSION").read_bytes() for path in paths] == [new, new]
    assert encode(place.cluster()) == new
    (paths[1] / "current" / "VERSION").write_bytes(encode(Cookie.of("x:1", ["/"], ["/"], instance)))
    mixed = place.run("cookie", "update", *one, *two)
    assert (mixed.exit_code, "belongs to bookie x:1" in mixed.stderr) == (1, True)


def test_delete_keeps_the_cookie_of_a_bookie_recreated_during_the_prompt(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new cookie has the same bytes and the same version."""
    place.start()
    made = BookieDirectories({str(place.path): "ab" * 16})

    async def create_again(store: MetadataStore) -> None:
        known = await store.read_cookie(ID)
        await store.delete_cookie(ID, known.version)
        await forget_bookie(store, ID)
        await write_directories(store, ID, made, None)
        await store.write_cookie(ID, known.value, None)

    def agreed(*asked: object) -> bool:
        other = threading.Thread(target=place.in_store, args=(create_again,))
        other.start()
        other.join()
        return True

    before = place.cluster()
    monkeypatch.setattr("quire.cli.bookie.cookie.confirmed", agreed)
    done = place.run("cookie", "delete", ID)
    assert (done.exit_code, "created the bookie again" in done.stderr) == (1, True)
    assert place.cluster() == before
    found = place.in_store(lambda store: read_directories(store, ID))
    assert found.value == made


async def test_a_bookie_starts_through_a_server_that_lags_behind_its_last_process(
    tmp_path: Path,
) -> None:
    """The error said that another process had started the bookie at the same time."""
    metadata, port = memory_metadata(), free_port()
    async with running_bookie(tmp_path, metadata=metadata, port=port):
        pass
    late = MemoryStore(metadata.cluster)
    LaggingServer(late).fall_behind()
    async with running_bookie(tmp_path, metadata=metadata, port=port):
        pass
    async with running_bookie(tmp_path, metadata=late, port=port) as bookie:
        assert bookie.serving
