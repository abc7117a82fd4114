"""The commands `quire bookie cookie ...`, which show and repair cookies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.clock import SystemClock
from quire._runtime.units import counted, some_of
from quire.cli.bookie.identity import (
    absolute,
    check_not_needed,
    cookie_as_json,
    errors_of,
    held,
    old_directory,
    opened_metadata,
)
from quire.cli.common.groups import EXIT_ERROR, LazyGroup, commands, say
from quire.cli.common.logs import printable
from quire.cli.common.options import (
    WHICH_CLUSTER,
    Command,
    asynchronous,
    bookie_argument,
    checked,
    confirmed,
    dry_run_option,
    flag,
    json_option,
    metadata_option,
    optional_metadata_option,
    run_async,
    yes_option,
)
from quire.cli.common.output import print_json
from quire.codec.metadata.cookie import (
    Cookie,
    decode,
    differences,
    encode,
    refuse_later_layout,
    split_directories,
)
from quire.errors import CookieError, KeyExistsError, LaterCookieError, UsageError

if TYPE_CHECKING:
    from quire.metadata.bookies.directories import BookieDirectories
    from quire.metadata.interface import MetadataStore
    from quire.storage.interfaces import Disk

_COMMANDS = commands(
    """
    show      cookie:show      Show the cookies of a bookie, and compare them.
    create    cookie:create    Write a missing cookie, into the directory or into the cluster.
    update    cookie:update    Rewrite all cookies of a bookie after its directories moved.
    delete    cookie:delete    Remove the cookie of a bookie from the cluster.
    generate  cookie:generate  Print the cookie of a bookie, for use with --from.
    """,
    "bookie",
)
FIELDS = ("bookie", "journal directories", "ledger directories", "index directories", "instance id")
UNNAMED = "-"
_from_option: Callable[[Command], Command] = click.option(
    "--from",
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read the cookie from this file, in the format that `generate` prints. '-' is standard "
    "input.",
)


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def cookie() -> None:
    """Show and repair the cookies, the identity files of a bookie.

    A cookie ties data directories to a bookie of a cluster. Each directory has one
    (current/VERSION), and the cluster has one for each bookie. A bookie starts only if they agree.
    Cookies have Apache BookKeeper's format, so these commands also work for the cookies that
    Apache's bookies have in the cluster. `update --dir` refuses an Apache bookie with separate
    journal or index directories. The commands cookie_create, cookie_get, ... of `quire shell` do
    the same with the flags of Apache's BookieShell, but change only the cookies in the cluster.
    """


# -- show -------------------------------------------------------------------------------------


@click.command()
@optional_metadata_option(
    "The metadata store of the bookie's cluster. Without it, only a directory is examined."
)
@bookie_argument(required=False)
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False),
    help="A data directory of the bookie, which may be running.",
)
@json_option("Print one JSON object per bookie.")
def show(uri: str | None, bookie: str, directory: str | None, as_json: bool) -> int:
    """Show the cookies of a bookie, and compare them.

    With BOOKIE, show its cookie in the cluster. With --dir, show the cookie of the directory, and
    compare the two. With neither, show the cookies of all bookies of the cluster. The exit status
    is 1 if a cookie is missing or cannot be decoded, if the two differ, or if the bookie no longer
    uses the directory.
    """
    if directory is None and uri is None:
        raise click.UsageError(f"{WHICH_CLUSTER}, or give --dir DIR")
    here: Cookie | None = None
    problems: list[str] = []
    if directory is not None:
        try:
            here = _directory_s(directory)
        except CookieError as error:
            problems.append(str(error))
        else:
            if here is None:
                problems.append(f"{directory} has no cookie")
        bookie = bookie or (here.bookie_id if here else "")
    if uri is None or (directory is not None and not bookie):
        return _print_shown([_Shown(bookie, here, None, directory, False, problems)], as_json)
    found, old = run_async(_stored_cookies(uri, bookie, directory))
    if old:
        problems.append(old)
    if bookie and bookie not in found:
        problems.append(f"the cluster has no cookie of bookie {bookie}")
        found = {bookie: b""}
    shown = []
    for name, data in sorted(found.items()):
        one = _Shown(name, here, None, directory, True, list(problems))
        one.read(data)
        shown.append(one)
    if not shown:
        raise UsageError(
            f"the cluster at {uri} has no cookie of any bookie",
            remedy="Check the metadata URI. A bookie writes its cookie when it is created",
        )
    return _print_shown(shown, as_json)


@dataclass(slots=True)
class _Shown:
    bookie: str
    here: Cookie | None
    cluster: Cookie | None
    directory: str | None
    asked: bool
    """Whether the cluster was asked for its cookie."""
    problems: list[str]

    def read(self, data: bytes) -> None:
        """Decode the cookie that the cluster has, and compare it with that of the directory.

        `data` is b"" if the cluster has none.
        """
        from quire.bookie.directories.identity import tell_differences

        try:
            self.cluster = decode(data) if data else None
        except CookieError as error:
            self.problems.append(f"in the cluster: {error}")
        if self.here is not None and self.cluster is not None:
            found = differences(self.here, self.cluster)
            if found:
                told = tell_differences(found, "in the directory", "in the cluster")
                self.problems.append(f"the cookies differ: {told}")

    def as_json(self) -> dict[str, Any]:
        described: dict[str, Any] = {"bookie": self.bookie or None}
        if self.directory is not None:
            described["directory"] = cookie_as_json(self.here)
        if self.asked:
            described["cluster"] = cookie_as_json(self.cluster)
        return {**described, "problems": self.problems}

    def lines(self) -> list[str]:
        places = [("in the directory", self.here), ("in the cluster", self.cluster)]
        lines = []
        for place, one in places:
            if one is not None:
                lines.append(f"{place}:")
                lines += [f"  {name:20} {value}" for name, value in _fields(one)]
        return lines


def _fields(one: Cookie) -> list[tuple[str, str]]:
    described = cookie_as_json(one) or {}

    def text(value: Any) -> str:
        return printable(", ".join(value) if isinstance(value, list) else str(value or UNNAMED))

    return [(name, text(described[name.replace(" ", "_")])) for name in FIELDS]


def _print_shown(shown: Sequence[_Shown], as_json: bool) -> int:
    for at, one in enumerate(shown):
        if as_json:
            print_json(one.as_json())
            continue
        lines = one.lines()
        if lines:
            click.echo("\n".join(([""] if at else []) + lines))
        for problem in one.problems:
            say(problem)
    return EXIT_ERROR if any(one.problems for one in shown) else 0


def _directory_s(directory: str) -> Cookie | None:
    from quire.bookie.directories.identity import stored_cookie
    from quire.storage.disk import RealDisk

    with errors_of(directory):
        return stored_cookie(RealDisk(directory, read_only=True))


async def _stored_cookies(
    uri: str, bookie: str, directory: str | None
) -> tuple[dict[str, bytes], str]:
    """Return the cookies by bookie id, and the reason why the cluster rejects the directory.

    The reason is '' if the cluster accepts it, or if `directory` is None. If `bookie` is '', the
    cookies of all bookies are returned.
    """
    from quire.bookie.directories.identity import known_cookie
    from quire.storage.disk import RealDisk

    async with opened_metadata(uri) as store:
        names = [bookie] if bookie else await store.list_cookies()
        found = {name: await known_cookie(store, name) for name in names}
        old = ""
        if directory is not None:
            with errors_of(directory):
                old = await old_directory(store, RealDisk(directory, read_only=True))
    return {name: data for name, data in found.items() if data is not None}, old


# -- delete -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@bookie_argument()
@flag(
    "--force",
    "Remove it even if ledgers have replicas on the bookie. These replicas are given up.",
)
@dry_run_option("Only check whether the cookie would be removed.")
@yes_option()
@asynchronous
async def delete(uri: str, bookie: str, force: bool, dry_run: bool, yes: bool) -> int:
    """Remove the cookie of BOOKIE from the cluster, which then no longer knows the bookie.

    The bookie's directories are not changed, but a bookie can no longer be started on them. Its
    entries are not copied: use `quire bookie decommission` for that. With --force, the cluster
    remembers that a bookie with this id held data. The next bookie with this id starts as one that
    lost its data: it does not deny that an entry exists until autorecovery has restored the
    replicas. The command asks for confirmation if standard input is a terminal.
    """

    from quire.bookie.directories.identity import check_not_registered, its_cookie
    from quire.metadata.bookies.directories import forget_bookie
    from quire.replication.moves.cookie_removal import identity_of, remove_cookie

    async with opened_metadata(uri) as store:
        await its_cookie(store, bookie)  # raises if there is none
        before = await identity_of(store, bookie)
        await check_not_registered(store, bookie)
        if not force:
            await check_not_needed(store, bookie, shown=True)
        question = f"Remove bookie {bookie} from the cluster?"
        if not confirmed(question, dry_run or yes, "nothing was removed"):
            return EXIT_ERROR
        if not dry_run:
            # It may have been started since, while the command waited for an answer.
            await check_not_registered(store, bookie)
            if not force and not yes and sys.stdin.isatty():
                # The starts of a bookie of Apache are not known.
                await check_not_needed(store, bookie, shown=True)
            await remove_cookie(store, bookie, before, stopped=not force)
            if not force:
                await forget_bookie(store, bookie, before.directories)
        done = "would be removed" if dry_run else "is removed"
        say(f"the cluster's cookie of bookie {bookie} {done}")
        if force:
            say(
                "as long as ledgers name it, the next bookie with this id starts as one that lost "
                "its data"
            )
        return 0


def _check_directory(path: str) -> None:
    from quire.bookie.options import check_directories

    check_directories((path,))


# -- generate ---------------------------------------------------------------------------------


@click.command()
@optional_metadata_option("The metadata store of the cluster whose instance id the cookie gets.")
@bookie_argument()
@click.option(
    "--dir", "directories", multiple=True, required=True, callback=checked(_check_directory),
    help="A data directory of the bookie. May be repeated.",
)  # fmt: skip
@click.option(
    "--journal-dir",
    "journals",
    multiple=True,
    callback=checked(_check_directory),
    help="A journal directory of an Apache bookie. May be repeated. [default: the data "
    "directories]",
)
@click.option(
    "--index-dir", "indexes", multiple=True, callback=checked(_check_directory),
    help="An index directory of an Apache bookie. May be repeated.",
)  # fmt: skip
@click.option(
    "--instance-id", help="The instance id of the cluster. [default: read from the cluster]"
)
@click.option(
    "-o",
    "--output",
    type=click.File("wb"),
    default="-",
    help="The file to write. [default: standard output]",
)
def generate(
    uri: str | None,
    bookie: str,
    directories: tuple[str, ...],
    journals: tuple[str, ...],
    indexes: tuple[str, ...],
    instance_id: str | None,
    output: Any,
) -> None:
    """Print the cookie of a bookie with these directories, for use with --from.

    Nothing is changed.
    """
    if instance_id is None:
        if uri is None:
            raise click.UsageError(f"{WHICH_CLUSTER}, or give --instance-id ID")
        instance_id = run_async(_instance_id(uri))
    data = absolute(directories)
    made = Cookie.of(
        bookie, absolute(journals) or data, data, instance_id, absolute(indexes) or None
    )
    output.write(encode(made))


async def _instance_id(uri: str) -> str:
    async with opened_metadata(uri) as store:
        return await store.instance_id()


# -- create -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@bookie_argument()
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False),
    help="A data directory of the bookie.",
)
@_from_option
@flag("--force", "Write the cookie even if it names another cluster.")
@dry_run_option("Only print what would be written.")
@asynchronous
async def create(
    uri: str, bookie: str, directory: str | None, file: str | None, force: bool, dry_run: bool
) -> None:
    """Write the cookie of BOOKIE where it is missing, in the directory or in the cluster.

    With --dir, the cookie is copied between the directory and the cluster, to the place where it is
    missing. With --from, it is written into the cluster, and with --dir also into the directory. An
    existing cookie is never replaced: the command fails. An empty directory gets no cookie, because
    a bookie that lost its data must not pretend to have it; `quire bookie init` creates a new
    bookie.
    """
    if directory is None and file is None:
        raise click.UsageError("nothing gives the cookie's content: use --dir DIR or --from FILE")
    given = _read_given(file, bookie) if file is not None else None
    async with opened_metadata(uri) as store:
        if given is not None:
            await _check_instance(store, given, "the file", force)
        if directory is None:
            assert given is not None
            await _create_in_cluster(store, given, dry_run)
            return
        with held(directory) as disk:
            await _create_where_missing(store, disk, bookie, given, force, dry_run)


async def _create_where_missing(
    store: MetadataStore, disk: Disk, bookie: str, given: Cookie | None, force: bool, dry_run: bool
) -> None:
    from quire.bookie.directories.identity import (
        COOKIE_FILE,
        decode_known,
        known_cookie,
        repair,
        stored_cookie,
    )

    known = await known_cookie(store, bookie)
    there = given
    if known is not None:
        file = f"{disk.path}/{COOKIE_FILE}"
        replace_it = (
            "Replace it by the directory's: "
            + repair("cookie", "update", bookie, "--from", file, uri=store.uri)
            + ". If the directory has none, make a file with `quire bookie cookie generate`"
        )
        there = decode_known(known, bookie, store.uri, replace_it)
    try:
        here = stored_cookie(disk)
    except LaterCookieError:
        raise
    except CookieError as error:
        say(str(error).partition(". ")[0])
        here = None  # it is written again
    if here is not None and there is not None:
        raise CookieError(
            f"{disk.path} has a cookie of bookie {here.bookie_id} already, and "
            + ("so has the cluster" if known is not None else "another one is given with --from")
            + "; nothing was changed",
            remedy="`quire bookie cookie show` compares them. To rewrite them, give all "
            "directories of the bookie to "
            + repair("cookie", "update", "--dir", disk.path, uri=store.uri),
        )
    if here is None and there is None:
        raise CookieError(
            f"neither the directory {disk.path} nor the cluster at {store.uri} has a cookie of "
            f"bookie {bookie}, so there is nothing to copy",
            remedy="Generate one with `quire bookie cookie generate`, and give it with --from. To "
            "create a new bookie, use `quire bookie init`",
        )
    if here is None:
        assert there is not None
        await _check_instance(store, there, "the cookie", force)
        _create_in_directory(disk, there, dry_run)
    if known is None:
        made = here or given
        assert made is not None
        if made.bookie_id != bookie:
            raise CookieError(
                f"{disk.path} belongs to bookie {made.bookie_id}, not {bookie}; nothing was "
                "changed",
                remedy="Name the bookie that the directory belongs to, or another directory",
            )
        await _check_instance(store, made, disk.path, force)
        await _create_in_cluster(store, made, dry_run)


def _create_in_directory(disk: Disk, made: Cookie, dry_run: bool) -> None:
    from quire.bookie.directories.identity import COOKIE_FILE
    from quire.storage.directory import read_identity, write_small_file

    identity = read_identity(disk)
    if identity is None or not identity.log_begun:
        raise CookieError(
            f"the directory {disk.path} has no log: if bookie {made.bookie_id} started on it, it "
            "would deny entries that it has acknowledged; nothing was changed",
            remedy="Give the right directory. If the data is lost, run `quire bookie decommission "
            f"{made.bookie_id}` to restore the replicas and free the id",
        )
    if disk.path not in split_directories(made.ledger_dirs):
        raise CookieError(
            f"the cookie of bookie {made.bookie_id} does not list {disk.path}, but "
            f"{', '.join(split_directories(made.ledger_dirs))}; nothing was changed",
            remedy="Give the right bookie. If the directory was moved, generate a cookie with "
            "`quire bookie cookie generate`, and give it with --from",
        )
    if not dry_run:
        write_small_file(disk, COOKIE_FILE, encode(made))
    _say_written(f"{disk.path}/{COOKIE_FILE}", made, dry_run)


async def _create_in_cluster(store: MetadataStore, made: Cookie, dry_run: bool) -> None:
    from quire.bookie.directories.identity import known_cookie, repair

    exists = CookieError(
        f"the cluster at {store.uri} has a cookie of bookie {made.bookie_id} already; nothing was "
        "changed",
        remedy="Replace it by the cookie in a file: "
        + repair("cookie", "update", made.bookie_id, "--from", "FILE", uri=store.uri),
    )
    if dry_run:
        if await known_cookie(store, made.bookie_id) is not None:
            raise exists
    else:
        try:
            await store.write_cookie(made.bookie_id, encode(made), None)
        except KeyExistsError:
            raise exists from None
    _say_written(store.uri, made, dry_run)


# -- update -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@bookie_argument(required=False)
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="A data directory of the bookie. Give all of them.",
)
@_from_option
@flag(
    "--force",
    "Proceed even if directories are left out or outdated, or a cookie names no cluster or another "
    "one.",
)
@dry_run_option("Only print what would be changed.")
@asynchronous
async def update(
    uri: str,
    bookie: str,
    directories: tuple[str, ...],
    file: str | None,
    force: bool,
    dry_run: bool,
) -> None:
    """Rewrite all cookies of a bookie after its directories moved.

    Use this after the directories were mounted elsewhere. The cookies in the directories and in the
    cluster get the present paths. The bookie id and the cluster remain those that the directories
    name. With --from, only the cluster's cookie of BOOKIE is replaced, by the content of the file.
    With --force, a directory may be left out. Its data is given up, and the bookie does not deny
    that an entry exists until autorecovery has restored the replicas.
    The command refuses the directories of an Apache bookie that has separate journal or index
    directories: use Apache's tools for them, or --from.
    """
    if bool(directories) == (file is not None):
        raise click.UsageError("give either --dir DIR or --from FILE, and not both")
    async with opened_metadata(uri) as store:
        if file is not None:
            given = _read_given(file, bookie)
            await _check_instance(store, given, "the file", force)
            await _replace(store, given, dry_run)
            return
        with ExitStack() as stack:
            disks = [stack.enter_context(held(one)) for one in directories]
            await _update_all(store, disks, bookie, force, dry_run)


async def _update_all(
    store: MetadataStore, disks: Sequence[Disk], bookie: str, force: bool, dry_run: bool
) -> None:
    from quire.bookie.directories.identity import (
        COOKIE_FILE,
        check_current,
        cookie_of,
        keep_ids,
        tell_differences,
        value_of,
    )
    from quire.metadata.bookies.directories import read_directories
    from quire.storage.directory import read_identity, write_small_file

    paths = [one.path for one in disks]
    found: list[Cookie] = []
    ids: dict[str, str] = {}
    wanted = bookie
    for disk in disks:
        one = await _cookie_there(store, disk, wanted, len(disks), force)
        wanted = one.bookie_id
        identity = read_identity(disk)
        if identity is not None:
            ids[disk.path] = identity.name
        found.append(one)
    if not ids:
        _check_no_separate_directories(disks, found)
    known = await read_directories(store, wanted)
    if not force:
        for path, name in ids.items():
            check_current(value_of(known), path, name, wanted, store.uri)
    gone = _left_out(value_of(known), ids, paths)
    if gone and not force:
        told = ", ".join(f"{one} at {path}" for path, one in gone.items())
        raise CookieError(
            f"bookie {wanted} also has data that you did not give with --dir: directory {told}; "
            "nothing was changed",
            remedy="Give every directory of the bookie, even one whose disk is broken. With "
            "--force, the bookie loses the data in those that are left out",
        )
    if ids and not dry_run:
        kept = value_of(known)
        for path in gone:
            kept = kept.without(path, (), "", SystemClock().now_ms())
        kept = kept.having(ids)
        if gone or any(len(split_directories(one.ledger_dirs)) > len(disks) for one in found):
            # The bookie must not deny the entries that were acknowledged in the others.
            kept = kept.with_lost(ids.values(), "lost the data of a directory that was left out")
        await keep_ids(store, wanted, known, kept)
    made = cookie_of(found[0].bookie_id, paths, await store.instance_id())
    for disk, one in zip(disks, found, strict=True):
        told = tell_differences(differences(made, one), "now", "before")
        if told:
            if not dry_run:
                write_small_file(disk, COOKIE_FILE, encode(made))
            say(f"{disk.path}/{COOKIE_FILE} {'would be' if dry_run else 'is'} changed: {told}")
    await _replace(store, made, dry_run)


def _left_out(
    known: BookieDirectories, ids: Mapping[str, str], paths: Sequence[str]
) -> dict[str, str]:
    """Return the directories of the bookie that are not among the given ones, by path.

    `known` is the bookie's record. `ids` has the ids of the given directories by path, and `paths`
    all of their paths. A directory whose id cannot be read may be one of those that are missing.
    """
    missing = {path: one for path, one in known.ids.items() if one not in ids.values()}
    unnamed = len(paths) - len(ids)
    if len(missing) <= unnamed:
        return {}
    return {path: one for path, one in missing.items() if not unnamed or path not in paths}


def _check_no_separate_directories(disks: Sequence[Disk], found: Sequence[Cookie]) -> None:
    """Raise CookieError if one of the cookies lists separate journal or index directories.

    This is for directories without an identity of Quire, which may belong to an Apache bookie. Its
    cookie would lose these directories, and only its own tools can rewrite the cookies in them.
    """
    for disk, one in zip(disks, found, strict=True):
        directories = split_directories(one.ledger_dirs)
        told = []
        if one.journal_dirs != ",".join(directories):
            told.append(f"the journal directories {one.journal_dirs}")
        if one.index_dirs not in (None, one.ledger_dirs):
            told.append(f"the index directories {', '.join(split_directories(one.index_dirs))}")
        if told:
            raise CookieError(
                f"{disk.path} has no log of Quire, and its cookie says that bookie "
                f"{one.bookie_id} also has {' and '.join(told)}: it is a bookie of Apache, or "
                "current/DIRECTORY is lost; nothing was changed",
                remedy="If it is a bookie of Apache, use Apache's tools. Or make its cookie with "
                "`quire bookie cookie generate --journal-dir`, write it into the cluster with "
                "`quire bookie cookie update --from`, and copy it to current/VERSION in each of "
                "its directories. If it is a bookie of Quire, restore current/DIRECTORY from a "
                "backup first",
            )


async def _cookie_there(
    store: MetadataStore, disk: Disk, wanted: str, directories: int, force: bool
) -> Cookie:
    """Return the cookie in a directory, which must be one of the bookie `wanted`.

    With '' as `wanted`, it may be one of any bookie. The cookie must be of this cluster, and
    must name at most as many directories as the caller, which named `directories`. With `force`,
    neither is required. Raises CookieError for a missing or unexpected cookie.
    """
    from quire.bookie.directories.identity import stored_cookie

    one = stored_cookie(disk, store.uri)
    if one is None:
        raise CookieError(
            f"{disk.path} has no cookie; nothing was changed",
            remedy="`quire bookie cookie create` writes a missing cookie",
        )
    if wanted and one.bookie_id != wanted:
        raise CookieError(
            f"{disk.path} belongs to bookie {one.bookie_id}, not {wanted}; nothing was changed",
            remedy="Name the bookie that the directory belongs to, or another directory",
        )
    await _check_instance(store, one, disk.path, force)
    listed = split_directories(one.ledger_dirs)
    if len(listed) > directories and not force:
        raise CookieError(
            f"the cookie in {disk.path} lists {counted(len(listed), 'directory')} of bookie "
            f"{one.bookie_id} ({some_of(listed)}), but you gave {directories}; nothing was changed",
            remedy="Give every directory of the bookie with --dir, even one whose disk is broken. "
            "With --force, the bookie loses the data in those that are left out",
        )
    return one


async def _replace(store: MetadataStore, made: Cookie, dry_run: bool) -> None:
    """Replace the cookie of a bookie in the cluster, if it differs."""
    from quire.bookie.directories.identity import its_cookie, tell_differences

    known = await its_cookie(store, made.bookie_id)
    what = f"the cookie of bookie {made.bookie_id} in the cluster"
    try:
        there = refuse_later_layout(decode(known.value), what)
        told = tell_differences(differences(made, there), "now", "before")
    except LaterCookieError:
        raise
    except CookieError as error:
        told = f"it could not be decoded: {error}"
    if not told:
        say(f"the cluster's cookie of bookie {made.bookie_id} is up to date")
        return
    if not dry_run:
        await store.write_cookie(made.bookie_id, encode(made), known.version)
    done = "would be" if dry_run else "is"
    say(f"the cluster's cookie of bookie {made.bookie_id} {done} changed: {told}")


# -- shared -----------------------------------------------------------------------------------


def _read_given(file: str, bookie: str) -> Cookie:
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        given = decode(data)
    except LaterCookieError as error:
        raise LaterCookieError(f"{file} cannot be used: {error.args[0]}") from None
    except CookieError as error:
        raise CookieError(
            f"{file} does not contain a cookie that can be used: {error}",
            remedy="Give a file that `quire bookie cookie generate` has written",
        ) from None
    if bookie and given.bookie_id != bookie:
        raise CookieError(
            f"{file} contains the cookie of bookie {given.bookie_id}, not of {bookie}; nothing "
            "was changed",
            remedy="Give the file with the cookie of this bookie, or name the other bookie",
        )
    return given


async def _check_instance(store: MetadataStore, one: Cookie, what: str, force: bool) -> None:
    """Raise CookieError if the cookie is of another cluster.

    Its bookie would delete the ledgers that this cluster does not have.
    """
    instance_id = await store.instance_id()
    if (one.instance_id or "") != instance_id and not force:
        raise CookieError(
            f"{what} names cluster {one.instance_id or 'none'}, but the instance id of {store.uri} "
            f"is {instance_id or 'not set'}; nothing was changed",
            remedy="Use the metadata URI of the cookie's cluster. If that store is lost or was "
            "created again, restore it from a backup first "
            "(docs/guides/repair/disaster-recovery.md). If `quire ledger list` shows that this "
            "store has the bookie's ledgers, --force makes the bookie part of it; the bookie then "
            "deletes the ledgers that the store does not have",
        )


def _say_written(where: str, made: Cookie, dry_run: bool) -> None:
    done = "would be written" if dry_run else "was written"
    say(f"the cookie of bookie {made.bookie_id} {done} to {where}")
