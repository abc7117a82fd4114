"""A data directory that a later version of Quire wrote is refused, and nothing in it is changed.

The directories are those of the golden data, with one valid change each.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire.cli.main import cli
from quire.errors import LaterStorageError
from quire.storage.disk import RealDisk
from quire.storage.inspect.contents import list_files
from tests.support.storage import later_versions as later
from tests.support.storage.later_versions import SEALED, UNSEALED, Change
from tests.support.storage.storage import StoreOnDisk

ADVICE_THAT_DESTROYS = re.compile(r"replac|delet|eras|remov|restor|`quire", re.I)

REFUSED: dict[str, tuple[str, Change, str]] = {
    "directory identity": (
        SEALED,
        later.lines("DIRECTORY", checked=False, old=b"format: 1", new=b"format: 2"),
        "format 2, but this version knows only format 1",
    ),
    "directory identity, another field": (
        SEALED,
        later.lines("DIRECTORY", checked=False, old=b"log: begun", new=b"log: begun\ntier: 2"),
        "the field 'tier'",
    ),
    "incarnation": (
        SEALED,
        later.lines("INCARNATION", checked=True, old=b"format: 1", new=b"format: 12"),
        "format 12",
    ),
    "incarnation, another field": (
        SEALED,
        later.lines("INCARNATION", checked=True, old=b"nonce", new=b"epoch: 4\nnonce"),
        "the field 'epoch'",
    ),
    "mark of a clean stop": (SEALED, later.clean_mark, "version 2 of this mark"),
    "damage record": (SEALED, later.damage_record({"format": 2}), "format 2"),
    "damage record, another field": (
        SEALED,
        later.damage_record({"cause": "rot"}),
        "the field 'cause'",
    ),
    "segment header": (SEALED, later.segment_header, "log format 4"),
    "trailer version": (SEALED, later.trailer(7, b"\x02"), "an index of version 2"),
    "trailer flags": (SEALED, later.trailer(116, b"\x03"), "an index with the flags 0x3"),
    "trailer zeros": (SEALED, later.trailer(120, b"\x07"), "an index with the flags"),
    "kind of state record": (
        SEALED,
        later.footer_record(0, b"\x09"),
        "a state record of kind 9, but this version knows only the kinds 1 to 7",
    ),
    "flags of state record": (SEALED, later.footer_record(1, b"\x01"), "with the flags 010000"),
    "group version": (UNSEALED, later.group(7, b"\x02"), "a group of version 2"),
    "group flags": (UNSEALED, later.group(60, b"\x08"), "a group with the flags 0x8"),
    "run flags": (UNSEALED, later.group(later.RUN_FLAGS_AT, b"\x02"), "a run with the flags 0x2"),
}


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("what", REFUSED)
def test_a_start_refuses_a_later_version_and_changes_nothing(what: str, tmp_path: Path) -> None:
    name, change, found = REFUSED[what]
    directory = later.golden_directory(name, tmp_path)
    changed = change(directory)
    before = digests(directory)
    disk = RealDisk(str(directory))
    with pytest.raises(LaterStorageError) as refused:
        StoreOnDisk(disk).open()
    disk.close()
    message = str(refused.value)
    assert message.startswith(f"{changed} was written by a later version of Quire: it has ")
    assert found in message
    assert message.endswith(
        ". Install the version that wrote it, or a later one. Nothing is damaged"
    )
    assert not ADVICE_THAT_DESTROYS.search(message)
    assert digests(directory) == before


LOOKS = {
    "check": ("bookie", "disk", "check"),
    "scrub": ("bookie", "scrub"),
    "space": ("bookie", "explain", "space"),
    "last-mark": ("bookie", "disk", "last-mark"),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("what", REFUSED)
def test_inspection_commands_report_the_later_version(what: str, look: str, tmp_path: Path) -> None:
    name, change, found = REFUSED[what]
    directory = later.golden_directory(name, tmp_path)
    changed = change(directory)
    before = digests(directory)
    done = CliRunner().invoke(cli, [*LOOKS[look], str(directory)])
    assert done.exit_code == 1, done.output
    assert f"{changed} was written by a later version of Quire" in done.output
    assert found in done.output
    assert digests(directory) == before


def test_the_list_of_files_shows_a_segment_of_a_later_version(tmp_path: Path) -> None:
    directory = later.golden_directory(SEALED, tmp_path)
    changed = later.segment_header(directory)
    found = {one.name: one for one in list_files(RealDisk(str(directory), read_only=True))}
    segment = found[f"log/{changed.name}"].segment
    assert segment is not None
    assert (segment.state, segment.later) == ("later", "log format 4")
    done = CliRunner().invoke(cli, ["bookie", "disk", "files", str(directory)])
    assert done.exit_code == 0
    assert "later    a later version of Quire wrote it: it has log format 4" in done.output


def test_an_index_cache_of_a_later_version_is_not_used(tmp_path: Path) -> None:
    """The cache has no data of its own, so the start continues without it."""
    directory = later.golden_directory(SEALED, tmp_path)
    later.index_cache(directory)
    disk = RealDisk(str(directory))
    box = StoreOnDisk(disk)
    assert box.open().index_cache == (
        "not used: it was written by a later version of Quire: it has version 2, but this version "
        "knows only version 1"
    )
    box.idle()
    disk.close()


def test_a_damaged_version_is_damage(tmp_path: Path) -> None:
    """Without a valid checksum, nobody can tell which version wrote it."""
    directory = later.golden_directory(UNSEALED, tmp_path)
    path = later.open_segment(directory)
    data = bytearray(path.read_bytes())
    data[8] ^= 4
    path.write_bytes(data)
    disk = RealDisk(str(directory))
    assert f"the header of log/{path.name} is damaged" in StoreOnDisk(disk).open().problems
    disk.close()
