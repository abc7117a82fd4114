"""`quire bookie cookie`: what ties directories to a bookie of a cluster, looked at and mended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from quire.cli.bookie.identity import (
    absolute,
    check_not_needed,
    cookie_as_json,
    errors_of,
    old_directory,
    opened_metadata,
)
from quire.cli.common.groups import EXIT_ERROR, LazyGroup, say
from quire.cli.common.options import (
    WHICH_CLUSTER,
    bookie_argument,
    checked,
    json_option,
    metadata_option,
    optional_metadata_option,
    run_async,
)
from quire.cli.common.output import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quire.codec.metadata.cookie import Cookie

_COMMANDS = {
    "show": ("quire.cli.bookie.cookie:show", "Show the cookies of a bookie, and compare them."),
    "create": (
        "quire.cli.bookie.cookie_write:create",
        "Write the cookie where it is lost: in the directory, or in the cluster.",
    ),
    "update": (
        "quire.cli.bookie.cookie_write:update",
        "Write both cookies anew: the bookie's directories have other names now.",
    ),
    "delete": ("quire.cli.bookie.cookie:delete", "Remove a bookie from the cluster."),
    "generate": ("quire.cli.bookie.cookie:generate", "Print a cookie, for --from."),
}
FIELDS = ("bookie", "journal directories", "ledger directories", "index directories", "instance id")
UNNAMED = "-"


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def cookie() -> None:
    """The cookies that tie directories to a bookie of a cluster.

    One is in each directory (current/VERSION), one in the cluster. They have Apache BookKeeper's
    form: those of Apache's bookies are shown and written as well.
    """


# -- show -------------------------------------------------------------------------------------


@click.command()
@optional_metadata_option("The bookie's cluster; without it only a directory is looked at.")
@bookie_argument(required=False)
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False),
    help="A data directory of the bookie, whether it runs or not.",
)
@json_option("One JSON object a bookie.")
def show(uri: str | None, bookie: str, directory: str | None, as_json: bool) -> int:
    """Show the cookie of BOOKIE in the cluster, and with --dir the directory's beside it.

    Without either, the cookies of all bookies of the cluster. Exit status 1: one of the two is
    missing, cannot be understood, or differs, or the directory is an old one, which the bookie has
    no more.
    """
    from quire.errors import CookieError, UsageError

    if directory is None and uri is None:
        raise click.UsageError(f"{WHICH_CLUSTER}; or --dir DIR")
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
    found, old = run_async(_cluster_s(uri, bookie, directory))
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
        raise UsageError(f"the cluster at {uri} knows no bookies")
    return _print_shown(shown, as_json)


class _Shown:
    def __init__(
        self, bookie: str, here: Cookie | None, cluster: Cookie | None, directory: str | None,
        asked: bool, problems: list[str],
    ) -> None:  # fmt: skip
        self.bookie = bookie
        self.here = here
        self.cluster = cluster
        self.directory = directory
        self.asked = asked
        """Whether the cluster was."""
        self.problems = problems

    def read(self, data: bytes) -> None:
        """What the cluster has; b"": nothing."""
        from quire.bookie.directories.identity import tell_differences
        from quire.codec.metadata.cookie import decode, differences
        from quire.errors import CookieError

        try:
            self.cluster = decode(data) if data else None
        except CookieError as error:
            self.problems.append(f"in the cluster: {error}")
        if self.here is not None and self.cluster is not None:
            found = differences(self.here, self.cluster)
            if found:
                told = tell_differences(found, "in the directory", "in the cluster")
                self.problems.append(f"they differ: {told}")

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
        return ", ".join(value) if isinstance(value, list) else str(value or UNNAMED)

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


async def _cluster_s(uri: str, bookie: str, directory: str | None) -> tuple[dict[str, bytes], str]:
    """Of this bookie, or ('') of all; and what it knows against the directory."""
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
@click.option(
    "--force", is_flag=True, help="Also where ledgers name the bookie: these copies are given up."
)
@click.option("--dry-run", is_flag=True, help="Only say whether it would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
def delete(uri: str, bookie: str, force: bool, dry_run: bool, yes: bool) -> int:
    """Remove the cookie of BOOKIE from the cluster, which then no longer knows it.

    The bookie's directories are not changed, but a bookie can no longer be started on them. Its
    entries are not copied: see `quire bookie decommission`. With --force the cluster remembers that
    a bookie with this id held data. The next one with this id starts as a bookie that lost its
    data: it answers "unknown" until autorecovery has restored the copies. The command asks for
    confirmation if standard input is a terminal.
    """

    async def work() -> int:
        from quire.bookie.directories.identity import check_not_registered, its_cookie
        from quire.metadata.bookies.directories import forget_bookie

        async with opened_metadata(uri) as store:
            known = await its_cookie(store, bookie)
            await check_not_registered(store, bookie)
            if not force:
                await check_not_needed(store, bookie, shown=True)
            ask = not (dry_run or yes) and sys.stdin.isatty()
            if ask and not click.confirm(f"Remove bookie {bookie} from the cluster?", err=True):
                say("nothing was removed")
                return EXIT_ERROR
            if not dry_run:
                await store.delete_cookie(bookie, known.version)
                if not force:
                    await forget_bookie(store, bookie)
            done = "would be removed" if dry_run else "is removed"
            say(f"the cluster's cookie of bookie {bookie} {done}")
            if force:
                say(
                    "while ledgers name it, the next bookie of this id begins as one that has lost "
                    "its data"
                )
            return 0

    return run_async(work())


def _check_directory(path: str) -> None:
    from quire.bookie.options import check_directories

    check_directories((path,))


# -- generate ---------------------------------------------------------------------------------


@click.command()
@optional_metadata_option("The cluster whose instance id it gets.")
@bookie_argument()
@click.option(
    "--dir", "directories", multiple=True, required=True, callback=checked(_check_directory),
    help="A data directory.",
)  # fmt: skip
@click.option(
    "--journal-dir",
    "journals",
    multiple=True,
    callback=checked(_check_directory),
    help="A journal directory, of an Apache bookie. [default: the data directories]",
)
@click.option(
    "--index-dir", "indexes", multiple=True, callback=checked(_check_directory),
    help="An index directory, of an Apache one.",
)  # fmt: skip
@click.option("--instance-id", help="The cluster's. [default: what the cluster says]")
@click.option(
    "-o", "--output", type=click.File("wb"), default="-", help="[default: standard output]"
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
    """Print the cookie that a bookie with these directories has. Nothing is changed."""
    from quire.codec.metadata.cookie import Cookie, encode

    if instance_id is None:
        if uri is None:
            raise click.UsageError(f"{WHICH_CLUSTER}; or --instance-id ID")
        instance_id = run_async(_instance_id(uri))
    data = absolute(directories)
    made = Cookie.of(
        bookie, absolute(journals) or data, data, instance_id, absolute(indexes) or None
    )
    output.write(encode(made))


async def _instance_id(uri: str) -> str:
    async with opened_metadata(uri) as store:
        return await store.instance_id()
