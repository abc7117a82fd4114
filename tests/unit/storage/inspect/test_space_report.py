"""The report of `quire bookie explain space`, on simulated and real directories."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quire.blocking import connect
from quire.cli.main import cli
from quire.storage.config import StorageConfig
from quire.storage.disk import RealDisk
from quire.storage.inspect.space_report import look
from quire.testing.cluster import LocalCluster
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.storage import SMALL, StoreOnDisk, sim_disk


def filled(box: StoreOnDisk) -> None:
    """Return a store in which ledgers 1 to 4 share segments, and ledger 9 is stored twice."""
    box.append([(9, entry, bytes(400)) for entry in range(20)])
    box.pump()
    turn = 0
    while box.store.stats().sealed_segments < 3:
        box.append([(ledger_id, turn, bytes(300)) for ledger_id in (1, 2, 3, 4)])
        box.pump()
        turn += 1
    box.append([(9, entry, bytes(400)) for entry in range(20)])
    while box.store.stats().sealed_segments < 4:
        box.append([(1, turn, bytes(300))])
        box.pump()
        turn += 1
    box.idle()


def bytes_below(directory: Path) -> int:
    """Return the size according to the file system. Preallocated files have their blocks."""
    found = [os.lstat(Path(at, name)) for at, _, names in os.walk(directory) for name in names]
    size = sum(one.st_size for one in found)
    assert sum(one.st_blocks * 512 for one in found) >= size
    return size


def test_every_byte_is_accounted_for() -> None:
    disk = sim_disk()
    box = StoreOnDisk(disk)
    box.open()
    filled(box)
    box.fence(2)
    box.drop([3, 4])
    box.idle()
    report = look(disk, SMALL)
    usage = {one.number: one for one in box.store.usage()}
    sealed = [one for one in report.segments if one.state == "sealed"]
    assert len(sealed) == 4
    for one in sealed:
        assert one.live_bytes == usage[one.number].live_bytes
        assert one.live_ledgers == usage[one.number].live_ledgers
        assert one.file_bytes == usage[one.number].file_bytes
        assert 0 <= one.other_bytes < one.file_bytes
    assert sealed[0].deleted_bytes > 0
    assert sealed[0].copies_bytes > 20 * 400
    assert sum(one.copies_bytes for one in report.ledgers) == sealed[0].copies_bytes
    states = [one.state for one in report.segments]
    assert states.count("open") == 1
    assert "prepared" in states
    ledgers = {one.ledger_id: one for one in report.ledgers}
    assert sorted(ledgers) == [1, 2, 9]
    assert ledgers[2].fenced
    assert ledgers[9].segments == 2
    assert report.problems == ()
    assert not report.absence_unknown


def test_the_space_report_changes_nothing() -> None:
    disk = sim_disk()
    box = StoreOnDisk(disk)
    box.open()
    filled(box)
    operations = 0

    def operate(name: str = "") -> None:
        nonlocal operations
        operations += 1

    real = disk._operate
    disk._operate = operate  # type: ignore[method-assign]
    look(disk, SMALL)
    disk._operate = real  # type: ignore[method-assign]
    assert operations == 0
    box.append([(1, 100_000, b"goes on")])
    box.idle()
    assert box.read(1, 100_000) == [box.written[1, 100_000]]


def test_a_file_removed_during_the_report_is_not_an_error() -> None:
    disk = sim_disk()
    box = StoreOnDisk(disk)
    box.open()
    filled(box)
    box.drop([1, 2, 3, 4, 9])
    seen = 0
    real = SimDisk.open

    def opened(name: str) -> object:
        nonlocal seen
        seen += 1
        if seen == 6:
            box.idle()
        return real(disk, name)

    disk.open = opened  # type: ignore[method-assign, assignment]
    report = look(disk, SMALL)
    assert report.problems == ()
    assert box.store.stats().segments_removed > 0


def test_explain_space_prints_the_report_as_text_and_json(tmp_path: Path) -> None:
    config = StorageConfig(segment_bytes=1 << 16, reserve_bytes=1 << 15, min_free_bytes=0)
    disk = RealDisk(tmp_path)
    box = StoreOnDisk(disk, config)
    box.open()
    filled(box)
    box.drop([3, 4])
    box.idle()
    runner = CliRunner()
    arguments = ["bookie", "explain", "space", str(tmp_path), "--set", "segment_bytes=65536"]
    shown = runner.invoke(cli, arguments)
    assert shown.exit_code == 0, shown.output
    assert "of it is alive" in shown.output or "compacted" in shown.output
    assert "adds go to it" in shown.output
    found = json.loads(runner.invoke(cli, [*arguments, "--json", "--ledgers", "1"]).output)
    assert len(found["ledgers"]) == 1
    assert found["totals"]["live_bytes"] == box.store.stats().live_bytes
    assert all(one["why"] for one in found["segments"])
    assert found["file_bytes"] == bytes_below(tmp_path)
    box.close()
    disk.close()
    # Files of a clean stop, the record of a damaged segment, and a foreign file.
    (tmp_path / "log" / "0000000000000001.damaged").write_bytes(b"x" * 123)
    (tmp_path / "log" / "compaction.spare").write_bytes(b"z" * 12_345)
    (tmp_path / "lost+found" / "deep").mkdir(parents=True)
    (tmp_path / "lost+found" / "deep" / "piece").write_bytes(b"y" * 4567)
    disk = RealDisk(tmp_path, read_only=True)
    report = look(disk, config)
    disk.close()
    assert report.file_bytes == bytes_below(tmp_path)
    assert report.reserve_bytes == 12_345
    assert {one.name: one.what for one in report.files} == {
        "current/DIRECTORY": "the directory's own id",
        "log/CLEAN": "mark of a clean stop",
        "log/INDEX": "index cache",
        "log/compaction.spare": "room for a compaction",
        "log/0000000000000001.damaged": "record of damage",
        "lost+found/deep/piece": "other",
    }
    prepared = {one.file_bytes: one.why for one in report.segments if one.state == "prepared"}
    assert sorted(prepared) == [config.reserve_bytes, config.segment_bytes]
    assert "recoveries" in prepared[config.reserve_bytes]
    text = runner.invoke(cli, arguments).output
    assert f"take {bytes_below(tmp_path) / 1e6:.1f} MB" in text
    assert "index cache" in text
    missing = runner.invoke(cli, ["bookie", "explain", "space", str(tmp_path / "log")])
    assert missing.exit_code != 0


def test_the_number_of_a_segment_is_the_same_in_all_commands(tmp_path: Path) -> None:
    """A number of two digits was in hexadecimal digits in one of the commands."""
    disk = RealDisk(tmp_path)
    box = StoreOnDisk(disk, StorageConfig(segment_bytes=1 << 16, min_free_bytes=0))
    box.open()
    entry = 0
    while box.store.stats().sealed_segments < 18:
        box.append([(1, entry, bytes(4000))])
        box.pump()
        entry += 1
    box.close()
    disk.close()

    def bookie(*words: str) -> str:
        shown = CliRunner().invoke(cli, ["bookie", *words])
        assert shown.exit_code == 0, shown.output
        return shown.output

    place = str(tmp_path)
    explained = bookie("explain", "space", place).partition("why it is not smaller")[2]
    numbers = [line.split()[0] for line in explained.partition("\n\n")[0].split("\n")[1:]]
    listed = bookie("disk", "files", place).splitlines()
    assert sorted(map(int, numbers)) == sorted(
        int(line.split()[2]) for line in listed if ".seg " in line
    )
    for number in numbers:
        assert bookie("disk", "segment", place, number).startswith(f"segment {number}: ")


@pytest.mark.parametrize(("number", "hint"), [
    (errno.EACCES, "as the user that the bookie runs as"),
    (errno.EIO, "The disk may be damaged"),
    (errno.EMFILE, ""),
])  # fmt: skip
def test_an_unreadable_directory_does_not_hide_the_others(
    number: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    disk = RealDisk(good)
    box = StoreOnDisk(disk, StorageConfig(segment_bytes=1 << 16, reserve_bytes=1 << 15))
    box.open()
    filled(box)
    box.close()
    disk.close()
    bad.mkdir()
    found = os.stat

    def denied(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if os.fspath(path).startswith(f"{bad}{os.sep}"):
            raise OSError(number, os.strerror(number), str(path))
        return found(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", denied)
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not str(path).startswith(str(bad)))
    shown = CliRunner().invoke(cli, ["bookie", "explain", "space", str(bad), str(good)])
    assert shown.exit_code == 1
    assert f"{bad} cannot be used: {os.strerror(number)}" in shown.output
    assert f"{good}: " in shown.output
    alone = CliRunner().invoke(cli, ["bookie", "explain", "space", str(bad)])
    assert alone.exit_code == 1
    for result in (shown, alone):
        assert hint in result.output
        assert hint or ("Run this" not in result.output and "damaged" not in result.output)


def test_ledgers_that_were_deleted_but_not_collected_are_counted(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'metadata.db'}"
    with LocalCluster(1, directory=tmp_path / "data") as cluster, connect(cluster.uri) as client:
        ids = []
        for _ in range(3):
            with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger:
                ledger.append(b"x" * 100_000)
                ids.append(ledger.ledger_id)
        arguments = ["bookie", "explain", "space", str(cluster.bookies[0].directory)]
        told = [*arguments, "--metadata", cluster.uri]
        runner = CliRunner()
        assert "All ledgers that count as live exist" in runner.invoke(cli, told).output
        client.delete_ledger(ids[0])
        output = runner.invoke(cli, told).output
        assert f"counted as live here: 1 ledger with 0.1 MB ({ids[0]})" in output
        found = json.loads(runner.invoke(cli, [*told, "--json"]).output)
        assert found["uncollected_ledgers"] == 1
        output = runner.invoke(cli, arguments).output
        assert "Until then, a deleted ledger counts as live" in output
        runner.invoke(cli, ["cluster", "init", "--metadata", uri])
        output = runner.invoke(cli, [*arguments, "--metadata", uri]).output
        assert "not compared: the directory belongs to another cluster" in output
