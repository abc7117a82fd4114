"""The problems of disks: full, nearly full or failed, and compaction that frees no space."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quire._runtime.names.in_commands import COMMANDS_MAX, for_each
from quire._runtime.units import counted, listed, percent_text, size_text, some_of
from quire.http.views.bookie_list import disk_nearly_full
from quire.http.views.problems.problem import Bookie, Problem
from quire.metadata.bookies.unwritable import FAILED, FULL

SAME_SHARE = 0.001
"""Two disks of one host with the same size are one disk if their free space differs by at most this
share of it. Bookies do not measure the space at the same moment."""
NO_ROOM = (
    "Nothing that helps: even if the bookie deleted its whole log, the disk would have less free "
    "space than min_free_bytes. The bookie accepts entries again when other files are removed"
)
"""The text of `doing` for a full disk on which the bookie cannot make enough room."""
SUSPENDED = "/api/v1/bookie/gc/suspend_compaction"
RESUME = "/api/v1/bookie/gc/resume_compaction"


@dataclass(frozen=True, slots=True)
class Disk:
    """The space of one data directory, or of all of them together."""

    directory: str
    """The directory, or "" if it is not known."""
    free_bytes: float
    total_bytes: float

    @property
    def used(self) -> float:
        return 1 - self.free_bytes / self.total_bytes

    @property
    def nearly_full(self) -> bool:
        return disk_nearly_full(self.free_bytes, self.total_bytes)

    def same_as(self, other: Disk) -> bool:
        """Return whether the disk of another directory on the same host is probably this one."""
        near = abs(self.free_bytes - other.free_bytes) <= SAME_SHARE * self.total_bytes
        return self.total_bytes == other.total_bytes and near

    def __str__(self) -> str:
        left = f"{size_text(self.free_bytes)} of {size_text(self.total_bytes)} free"
        return f"{self.directory}: {left}" if self.directory else left


def disks_of(bookie: Bookie) -> list[Disk]:
    """Return the disks of a bookie, as far as they are known."""
    found = [
        Disk(one["directory"], one["free_bytes"], one["total_bytes"])
        for one in bookie.get("disks", ())
        if one["total_bytes"]
    ]
    if not found and bookie.get("free_bytes") is not None and bookie.get("total_bytes"):
        named = bookie.get("directories", ())
        directory = named[0] if len(named) == 1 else ""
        found = [Disk(directory, bookie["free_bytes"], bookie["total_bytes"])]
    return found


@dataclass(frozen=True, slots=True)
class NearlyFull:
    """A disk that is nearly full, with the bookies and directories that share it."""

    disk: Disk
    bookies: tuple[str, ...]
    host: str
    directories: tuple[str, ...]

    def __str__(self) -> str:
        owner = (
            self.bookies[0]
            if len(self.bookies) == 1
            else f"{counted(len(self.bookies), 'bookie')} on {self.host}"
        )
        named = replace(self.disk, directory=some_of(self.directories))
        return f"{percent_text(self.disk.used)} of the disk of {owner} is used ({named})"


def nearly_full_disks(bookies: Iterable[Bookie]) -> list[NearlyFull]:
    """Return the disks that are nearly full, sorted by the id of their first bookie.

    Bookies and directories of one host that report the same space share a disk, which counts once.
    A full disk of a read-only bookie is not among them, because it is another problem.
    """
    found: list[NearlyFull] = []
    for one in sorted(bookies, key=lambda one: one["id"]):
        if one["state"] == "gone":
            continue
        reasons = one.get("unwritable")
        full = {reason["directory"] for reason in reasons or () if reason["why"] == FULL}
        if one["state"] == "read-only" and (full or reasons is None):
            continue  # the reason why it is read-only says so
        host = one.get("host") or ""
        for disk in disks_of(one):
            if not disk.nearly_full or disk.directory in full:
                continue
            directories = (disk.directory,) if disk.directory else ()
            for at, other in enumerate(found):
                if host and host == other.host and disk.same_as(other.disk):
                    found[at] = replace(
                        other,
                        bookies=tuple(dict.fromkeys((*other.bookies, one["id"]))),
                        directories=(*other.directories, *directories),
                    )
                    break
            else:
                found.append(NearlyFull(disk, (one["id"],), host, directories))
    return found


def of_disks(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    """Yield the problems of disks that do not make a bookie read-only."""
    for one in bookies:
        if one["state"] == "writable":
            yield from _of_directories(one, one.get("unwritable") or ())
    nearly = nearly_full_disks(bookies)
    if not nearly:
        return
    nearly.sort(key=lambda one: one.disk.used, reverse=True)
    several = len(nearly) > 1
    yield Problem(
        "warn",
        f"{len(nearly)} disks are nearly full"
        if several
        else f"1 disk is nearly full: {nearly[0]}",
        explain_spaces((one.bookies[0], one.directories[:1]) for one in nearly),
        "A bookie becomes read-only when its disk is full",
        bookies=tuple(dict.fromkeys(name for one in nearly for name in one.bookies)),
        items=listed(map(str, nearly), limit=COMMANDS_MAX) if several else (),
    )


def explain_spaces(places: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Return the commands that show what takes the space of disks, and where to run each.

    `places` has bookies and some of their directories. A directory that is not known is "".
    """
    by_bookie: dict[str, list[str]] = {}
    for bookie_id, directories in places:
        by_bookie.setdefault(bookie_id, []).extend(filter(None, directories))
    commands = {
        # People paste this command into a shell, and the paths come from a bookie: quote them.
        bookie_id: f"quire bookie explain space {shlex.join(directories) or 'DIR'}"
        for bookie_id, directories in by_bookie.items()
    }
    if len(commands) == 1:
        ((bookie_id, command),) = commands.items()
        return f"Run this on the machine of {bookie_id}: {command}"
    told = for_each((bookie_id, f": {command}") for bookie_id, command in commands.items())
    return f"See on each machine what takes the space. {told}"


def _of_directories(bookie: Bookie, reasons: Iterable[Mapping[str, str]]) -> Iterator[Problem]:
    """Yield the problems of single directories of a bookie that accepts entries all the same."""
    for reason in reasons:
        if reason["why"] == FULL:
            yield Problem(
                "warn",
                f"A disk of {bookie['id']} is full: {disk_text(bookie, reason['directory'])}"
                f"{shares_text(bookie, reason['directory'])}",
                explain_full([(bookie, reason["directory"])]),
                "New ledgers go to the other directories of the bookie",
                NO_ROOM
                if cannot_make_room(bookie, reason["directory"])
                else "The bookie frees the space of deleted ledgers",
                (bookie["id"],),
            )
        elif reason["why"] == FAILED:
            yield failed_directory(bookie, reason["directory"])


def disk_text(bookie: Bookie, directory: str) -> str:
    """Return the directory with its space, if it is known."""
    disks = disks_of(bookie)
    found = [one for one in disks if one.directory == directory]
    if not found and len(disks) == 1 and not disks[0].directory:
        found = [replace(disks[0], directory=directory)]
    return str(found[0]) if found else directory


def _log_bytes(bookie: Bookie, directory: str) -> tuple[int, int] | None:
    """Return the bytes of the log of a bookie in a data directory, and of its prepared files.

    They are not known if the bookie has no HTTP server, which reports them, or if its report lacks
    them. The result is None then. A bookie of an earlier version does not report prepared files.
    """
    for one in (bookie.get("report") or {}).get("directories") or ():
        if one["path"] == directory and one["segments"]:
            sizes = [part["file_bytes"] for part in one["segments"]]
            return None if None in sizes else (sum(sizes), one.get("prepared_bytes") or 0)
    return None


def own_bytes(bookie: Bookie, directory: str) -> int | None:
    """Return the bytes of a bookie's files in a data directory, or None if they are not known.

    `quire bookie explain space` counts the same files, and the small files beside them.
    """
    found = _log_bytes(bookie, directory)
    return None if found is None else sum(found)


def disk_of(bookie: Bookie, directory: str) -> Disk | None:
    """Return the disk of a data directory of a bookie, or None if its space is not known."""
    return next((one for one in disks_of(bookie) if one.directory in ("", directory)), None)


def shares_text(bookie: Bookie, directory: str) -> str:
    """Return how much of the used space the bookie's files take, after a semicolon, or ""."""
    disk, own = disk_of(bookie, directory), own_bytes(bookie, directory)
    if disk is None or own is None:
        return ""
    other = max(0, int(disk.total_bytes - disk.free_bytes) - own)
    return f"; the files of this bookie take {size_text(own)}, and other files {size_text(other)}"


def has_other_files(bookie: Bookie, directory: str) -> bool:
    """Return whether files that are not the bookie's take more of the disk than its own."""
    disk, own = disk_of(bookie, directory), own_bytes(bookie, directory)
    return disk is not None and own is not None and (
        disk.total_bytes - disk.free_bytes - own > own
    )  # fmt: skip


def explain_full(full: Iterable[tuple[Bookie, str]]) -> str:
    """Return the commands that show what takes the space of full disks.

    `full` has bookies and their full directories.
    """
    places = list(full)
    told = explain_spaces((bookie["id"], [directory]) for bookie, directory in places)
    if not any(has_other_files(bookie, directory) for bookie, directory in places):
        return told
    whose = "the bookie's" if len({bookie["id"] for bookie, _ in places}) == 1 else "a bookie's"
    return f"{told}. It also says how to find the files that are not {whose}"


def cannot_make_room(bookie: Bookie, directory: str) -> bool:
    """Return whether it is certain that a bookie cannot make enough room by itself.

    It cannot if too little space would be free even without its log.
    """
    disk, found = disk_of(bookie, directory), _log_bytes(bookie, directory)
    least = bookie.get("min_free_bytes")
    if disk is None or found is None or least is None:
        return False
    log, _ = found  # the prepared files stay when ledgers are deleted
    return bool(disk.free_bytes + log < least)


def failed_directory(bookie: Bookie, directory: str) -> Problem:
    """Return the problem of a data directory that the bookie cannot use."""
    return Problem(
        "bad",
        f"The data directory {directory} of {bookie['id']} cannot be used: it was deleted, its "
        "disk fails, or it does not belong to this bookie",
        "Look for the events directory_failed and read_only in the bookie's log. If the disk is "
        f"lost for good: quire bookie disk replace {shlex.quote(bookie['id'])} "
        f"{shlex.quote(directory)} NEW",
        "The ledgers in this directory have one copy less",
        "Autorecovery restores the copies when the directory was replaced",
        (bookie["id"],),
    )


def _kept_space(suspended: Iterable[Sequence[str]]) -> str:
    """Return the risk of a suspension, from the kinds of compaction that each bookie suspends."""
    if any(len(kinds) > 1 for kinds in suspended):
        return "The space of deleted ledgers is freed only if no ledger in the same segment is left"
    return (
        "The space of deleted ledgers is freed later, or stays taken in segments that only the "
        "suspended compaction would rewrite"
    )


def of_compaction(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    """Yield the problem of bookies whose compaction is suspended."""
    held = [one for one in bookies if one.get("compaction_suspended")]
    if not held:
        return
    names = [one["id"] for one in held]
    full = [one["id"] for one in held if any(disk.nearly_full for disk in disks_of(one))]
    kinds = sorted({kind for one in held for kind in one["compaction_suspended"]})
    urls = {one["id"]: next(iter(one.get("http", ())), "http://BOOKIE") for one in held}
    see = {name: f": curl {shlex.quote(url + SUSPENDED)}" for name, url in urls.items()}
    resume = {
        name: f": curl -X PUT {shlex.quote(url + RESUME)} -H 'Authorization: Bearer TOKEN' "
        """-H 'Content-Type: application/json' -d '{"resumeMajor": true, "resumeMinor": true}'"""
        for name, url in urls.items()
    }
    yield Problem(
        "warn" if full else "note",
        f"{' and '.join(kinds).capitalize()} compaction of {some_of(names)} is suspended"
        + (f"; the disk of {some_of(full)} is nearly full" if full else ""),
        f"To see who suspended it, and when{see[names[0]]}. To resume it{resume[names[0]]}"
        if len(held) == 1
        else f"See who suspended it, and when. {for_each(see.items(), 'For')}. Then resume it. "
        f"{for_each(resume.items(), 'For')}",
        _kept_space(one["compaction_suspended"] for one in held),
        bookies=tuple(names),
    )
