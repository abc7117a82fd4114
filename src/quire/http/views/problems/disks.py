"""The problems of disks: full, nearly full or failed, and compaction that frees no space."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quire._runtime.units import are, counted, size_text, some_of
from quire.http.views.bookie_list import NEARLY_FULL
from quire.http.views.problems.problem import Bookie, Problem
from quire.metadata.bookies.unwritable import FAILED, FULL

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


def of_disks(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    """Yield the problems of disks that do not make a bookie read-only."""
    nearly: list[tuple[Disk, str]] = []
    for one in bookies:
        if one["state"] == "gone":
            continue
        reasons = one.get("unwritable")
        if one["state"] != "read-only":
            yield from _of_directories(one, reasons or ())
        full = {reason["directory"] for reason in reasons or () if reason["why"] == FULL}
        if one["state"] == "read-only" and (full or reasons is None):
            continue  # the reason why it is read-only says so
        disks = [disk for disk in disks_of(one) if disk.used >= NEARLY_FULL]
        nearly += [(disk, one["id"]) for disk in disks if disk.directory not in full]
    if not nearly:
        return
    nearly.sort(key=lambda found: -found[0].used)
    told = [f"{disk.used:.0%} of the disk of {name} is used ({disk})" for disk, name in nearly]
    fullest, bookie = nearly[0]
    yield Problem(
        "warn",
        f"{counted(len(nearly), 'disk')} {are(len(nearly))} nearly full: {some_of(told)}",
        explain_space(fullest.directory),
        f"A bookie becomes read-only when its disk is full. The command shows what takes the space "
        f"of {bookie}; run it there",
        bookies=tuple(dict.fromkeys(name for _, name in nearly)),
    )


def explain_space(directory: str) -> str:
    """Return the command that shows what takes the space of a directory."""
    # People paste this command into a shell, and the path comes from a bookie: quote it.
    return f"quire bookie explain space {shlex.quote(directory) if directory else 'DIR'}"


def _of_directories(bookie: Bookie, reasons: Iterable[Mapping[str, str]]) -> Iterator[Problem]:
    """Yield the problems of single directories of a bookie that accepts entries all the same."""
    for reason in reasons:
        if reason["why"] == FULL:
            yield Problem(
                "warn",
                f"A disk of {bookie['id']} is full: {disk_text(bookie, reason['directory'])}",
                explain_space(reason["directory"]),
                "New ledgers go to the other directories of the bookie",
                "The bookie frees the space of deleted ledgers",
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


def failed_directory(bookie: Bookie, directory: str) -> Problem:
    """Return the problem of a data directory that the bookie cannot use."""
    return Problem(
        "bad",
        f"The data directory {directory} of {bookie['id']} cannot be used: its disk fails, or it "
        "does not belong to this bookie",
        "Look for the event directory_failed in its log. If the disk is lost for good: quire "
        f"bookie disk replace {shlex.quote(bookie['id'])} {shlex.quote(directory)} NEW",
        "The ledgers in this directory have one copy less",
        "Autorecovery restores the copies when the directory was replaced",
        (bookie["id"],),
    )


def of_compaction(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    """Yield the problem of bookies whose compaction is suspended."""
    held = [one for one in bookies if one.get("compaction_suspended")]
    if not held:
        return
    names = [one["id"] for one in held]
    full = [one["id"] for one in held if any(disk.used >= NEARLY_FULL for disk in disks_of(one))]
    kinds = sorted({kind for one in held for kind in one["compaction_suspended"]})
    url = next((url for one in held for url in one.get("http", ())), "http://BOOKIE")
    yield Problem(
        "warn" if full else "note",
        f"{' and '.join(kinds).capitalize()} compaction of {some_of(names)} is suspended"
        + (f"; the disk of {some_of(full)} is nearly full" if full else ""),
        f"To see who suspended it, and when: curl {shlex.quote(url + SUSPENDED)}. To resume it: "
        f"curl -X PUT {shlex.quote(url + RESUME)} -H 'Authorization: Bearer TOKEN' "
        """-H 'Content-Type: application/json' -d '{"resumeMajor": true, "resumeMinor": true}'""",
        "The space of deleted ledgers is freed only if no ledger in the same segment is left",
        bookies=tuple(names),
    )
