"""The commands `quire bookie init`, which creates a bookie, and `quire bookie format`, which
deletes everything that it stores."""

from __future__ import annotations

import asyncio
import secrets
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.clock import SystemClock
from quire._runtime.units import counted
from quire.cli.bookie.identity import (
    check_not_needed,
    cookie_as_json,
    errors_of,
    held,
    opened_metadata,
    unresolved,
)
from quire.cli.cluster.destroyed import LOOK_LIMIT_S, destroyed
from quire.cli.common.groups import EXIT_ERROR, say, warn
from quire.cli.common.options import (
    WHICH_CLUSTER,
    asked,
    asynchronous,
    dry_run_option,
    flag,
    json_option,
    metadata_option,
    optional_metadata_option,
    run_async,
    yes_option,
)
from quire.cli.common.output import print_json
from quire.codec.metadata.cookie import Cookie, split_directories
from quire.codec.metadata.registration import default_bookie_id
from quire.errors import CookieError, LaterVersionError, QuireError, StorageError

if TYPE_CHECKING:
    from quire.metadata.interface import MetadataStore
    from quire.replication.moves.cookie_removal import BookieIdentity
    from quire.storage.disk import RealDisk
    from quire.storage.inspect.erase import ErasePlan

OPEN_LIMIT_S = LOOK_LIMIT_S + 5.0
"""Seconds to connect to the metadata store and to find the ledgers that formatting a bookie
destroys."""


# -- init -------------------------------------------------------------------------------------


@click.command()
@metadata_option
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False),
    help="The directory for entries: an empty one, or one that does not exist yet.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=3181,
    show_default=True,
    help="The port in the bookie's id, if --bookie-id is not given.",
)
@click.option(
    "--advertise",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="The host in the bookie's id, if --bookie-id is not given.",
)
@click.option(
    "--bookie-id",
    metavar="ID",
    default="",
    help="The permanent id of the bookie, by which ledgers refer to it. [default: HOST:PORT]",
)
@json_option("Print the cookie as one JSON object.")
@asynchronous
async def init(
    uri: str, directory: str, port: int, advertise: str, bookie_id: str, as_json: bool
) -> None:
    """Create a new bookie in an empty directory, and print its id.

    The command writes the bookie's cookie into the directory and into the cluster. `quire bookie
    start` does the same if its directory is empty and the cluster does not know the id. If the
    directory belongs to a bookie, or the cluster knows the id, the command fails and changes
    nothing.
    """
    from quire.bookie.directories.identity import create_identity
    from quire.bookie.options import check_advertised, check_directories, check_new_id

    wanted = bookie_id or default_bookie_id(advertise, port)
    check_directories((directory,))
    check_advertised(advertise)
    check_new_id(wanted)
    if not bookie_id and (why := unresolved(advertise)):
        warn(
            f"the host {advertise} cannot be resolved here ({why}), so clients may not find a "
            f"bookie with the id {wanted}. Correct --advertise, or the name server"
        )

    async with opened_metadata(uri) as store:
        with held(directory) as disk:
            cookie = await create_identity(
                disk, store, wanted, secrets.token_bytes, SystemClock().now_ms()
            )
    if as_json:
        print_json(cookie_as_json(cookie) or {})
    else:
        click.echo(wanted)


# -- format -----------------------------------------------------------------------------------


@click.command("format")
@optional_metadata_option(
    "The metadata store of the bookie's cluster, for --delete-cookie, and to name the streams and "
    "objects that lose a copy."
)
@click.option(
    "--dir",
    "directories",
    required=True,
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="A data directory of the bookie. May be repeated.",
)
@flag(
    "--delete-cookie",
    "Also remove the bookie from the cluster, so that a new bookie can use its id.",
)
@flag(
    "--force",
    "Proceed even if a directory is not recognised as a Quire bookie's, or ledgers still have "
    "replicas on the bookie.",
)
@dry_run_option("Only print what would be deleted.")
@yes_option("Do not ask for confirmation. Required if standard input is not a terminal.")
@json_option("Print one JSON object per directory.")
def erase_bookie(
    uri: str | None,
    directories: tuple[str, ...],
    delete_cookie: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete everything that a bookie stores in its directories.

    To remove a bookie without losing replicas, use `quire bookie decommission`. The command fails
    if the bookie is running, and deletes only files that belong to the bookie. Without
    --delete-cookie, the cluster still knows the bookie, and refuses to start it with the empty
    directories.
    """
    if delete_cookie and uri is None:
        raise click.UsageError(f"--delete-cookie: {WHICH_CLUSTER}")
    with ExitStack() as stack:
        work = [_Erasing(stack.enter_context(held(one)), force) for one in directories]
        cookie = _the_one_cookie(work, force) if delete_cookie else None
        before: BookieIdentity | None = None
        if cookie is not None:
            assert uri is not None
            before = run_async(_check_removal(uri, cookie, force, shown=not as_json))
        if uri is not None and not as_json:
            run_async(_tell_what_is_lost(uri, work))
        if not dry_run and not yes and not _agreed(work, cookie):
            say("nothing was deleted")
            return EXIT_ERROR
        if cookie is not None and not dry_run:
            assert uri is not None
            # The cookie goes first: after a crash, the remaining directories are refused at a
            # start, and can be formatted again.
            assert before is not None
            run_async(_remove_cookie(uri, cookie, force, before))
        for one in work:
            if not dry_run:
                one.erase()
            if as_json:
                print_json(one.as_json(cookie is not None, dry_run))
            else:
                click.echo(one.text(dry_run))
    if cookie is not None and not as_json:
        done = "would be removed" if dry_run else "is removed"
        click.echo(f"the cluster's cookie of bookie {cookie.bookie_id} {done}")
    return 0


class _Erasing:
    """One directory to be erased."""

    def __init__(self, disk: RealDisk, force: bool) -> None:
        from quire.bookie.directories.identity import COOKIE_FILE, stored_cookie
        from quire.storage.directory import read_identity
        from quire.storage.inspect.erase import plan_erase

        self.disk = disk
        self.cookie: Cookie | None = None
        with errors_of(disk.path):
            self.plan: ErasePlan = plan_erase(disk, COOKIE_FILE)
            try:
                self.cookie = stored_cookie(disk)
                ours = not self.plan.files or read_identity(disk) is not None
            except LaterVersionError:
                if not force:
                    raise
                ours = False
            except (CookieError, StorageError):
                ours = False
        if not ours and not force:
            raise StorageError(
                f"{disk.path} is not recognised as the directory of a Quire bookie; nothing was "
                "changed",
                remedy="Give the right directory. With --force, current/ and log/ in it are "
                "deleted all the same",
            )

    def erase(self) -> None:
        from quire.storage.inspect.erase import erase

        with errors_of(self.disk.path):
            erase(self.disk, self.plan)

    def text(self, dry_run: bool) -> str:
        files, size = len(self.plan.files), self.plan.size_bytes / 1e6
        whose = "" if self.cookie is None else f" of bookie {self.cookie.bookie_id}"
        done = "would be deleted" if dry_run else "deleted"
        text = f"{self.disk.path}: {counted(files, 'file')}{whose} {done} ({size:.1f} MB)"
        if self.plan.kept:
            text += f"; kept, because not the bookie's: {', '.join(self.plan.kept)}"
        return text

    def as_json(self, cookie_deleted: bool, dry_run: bool) -> dict[str, Any]:
        return {
            "directory": self.disk.path,
            "bookie": None if self.cookie is None else self.cookie.bookie_id,
            "files": list(self.plan.files),
            "bytes": self.plan.size_bytes,
            "kept": list(self.plan.kept),
            "cookie_deleted": cookie_deleted,
            "dry_run": dry_run,
        }


def _the_one_cookie(work: list[_Erasing], force: bool) -> Cookie:
    """Return the cookie that all directories have.

    Raises CookieError if the cookies differ, or, without `force`, if they name further directories.
    """
    remedy = (
        "Format each directory separately, without --delete-cookie, and remove the bookie from "
        "the cluster with `quire bookie cookie delete BOOKIE`"
    )
    cookie, first = work[0].cookie, work[0].disk.path
    for one in work:
        if one.cookie is None:
            raise CookieError(
                f"{one.disk.path} has no cookie that can be read, so it is not known which bookie "
                "to remove from the cluster; nothing was changed",
                remedy=remedy,
            )
        if one.cookie != cookie:
            raise CookieError(
                f"{first} and {one.disk.path} have different cookies, of bookie "
                f"{'' if cookie is None else cookie.bookie_id} and of bookie "
                f"{one.cookie.bookie_id}; nothing was changed",
                remedy=remedy,
            )
    assert cookie is not None, "at least one directory is given"
    left = sorted(set(split_directories(cookie.ledger_dirs)) - {one.disk.path for one in work})
    if left and not force:
        raise CookieError(
            f"bookie {cookie.bookie_id} also has directories that were not given: "
            f"{', '.join(left)}; nothing was changed",
            remedy="Name them with --dir. With --force, the cookie is removed, and these "
            "directories are left as they are",
        )
    return cookie


async def _check_removal(uri: str, cookie: Cookie, force: bool, *, shown: bool) -> BookieIdentity:
    """Return the identity of the bookie, whose cookie may be removed from the cluster."""
    from quire.bookie.directories.identity import check_not_registered
    from quire.replication.moves.cookie_removal import identity_of

    async with opened_metadata(uri) as store:
        await _check_cluster(store, cookie)
        before = await identity_of(store, cookie.bookie_id)
        await check_not_registered(store, cookie.bookie_id)
        if not force:
            await check_not_needed(store, cookie.bookie_id, shown=shown)
        return before


async def _remove_cookie(uri: str, cookie: Cookie, force: bool, before: BookieIdentity) -> None:
    from quire.bookie.directories.identity import check_not_registered
    from quire.metadata.bookies.directories import forget_bookie
    from quire.replication.moves.cookie_removal import remove_cookie

    async with opened_metadata(uri) as store:
        await _check_cluster(store, cookie)
        await check_not_registered(store, cookie.bookie_id)
        if await remove_cookie(store, cookie.bookie_id, before) and not force:
            await forget_bookie(store, cookie.bookie_id, before.directories)


async def _tell_what_is_lost(uri: str, work: list[_Erasing]) -> None:
    """Print how many ledgers have replicas on the bookies of these directories, and their owners.

    The directories can be deleted without the metadata store, so its errors are only printed.
    """
    cookies = {one.cookie.bookie_id: one.cookie for one in work if one.cookie is not None}
    if not cookies:
        return
    try:
        async with asyncio.timeout(OPEN_LIMIT_S), opened_metadata(uri) as store:
            for bookie_id, cookie in sorted(cookies.items()):
                if (cookie.instance_id or "") == await store.instance_id():
                    say(await destroyed(store, bookie_id))
    except (QuireError, TimeoutError) as error:
        why = str(error) or f"the metadata store did not answer within {OPEN_LIMIT_S:g} s"
        say(f"it is unknown which ledgers have replicas in these directories: {why}")


async def _check_cluster(store: MetadataStore, cookie: Cookie) -> None:
    """Raise CookieError if the cookie is of another cluster, which may have the same bookie id."""
    instance_id = await store.instance_id()
    if (cookie.instance_id or "") != instance_id:
        raise CookieError(
            f"bookie {cookie.bookie_id} belongs to cluster {cookie.instance_id}, but {store.uri} "
            f"is cluster {instance_id}; nothing was changed",
            remedy="Use the metadata URI of the bookie's cluster",
        )


def _agreed(work: list[_Erasing], cookie: Cookie | None) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "nothing was deleted: this command deletes everything that the bookie has stored, and "
            "there is no terminal to ask for confirmation. Confirm with --yes"
        )
    for one in work:
        say(one.text(dry_run=True))
    if cookie is not None:
        say(f"the cluster's cookie of bookie {cookie.bookie_id} would be removed")
    return asked("Delete all this?")
