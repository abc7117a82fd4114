"""The versions of a compacted table when a job that was taken for dead continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import HistoryError
from quire.spark.jobs.archive.store import ArchiveDirectory
from quire.spark.jobs.archive.versions import VersionClaim, Versions


def written(claim: VersionClaim, tmp_path: Path) -> Path:
    """Write a file of the version to the directory of a claim, as Spark does."""
    directory = tmp_path / "data" / claim.output.rpartition("/")[2]
    directory.mkdir()
    (directory / "part-0.parquet").write_bytes(b"rows")
    return directory


@pytest.mark.parametrize("sweep", [1, 2])
def test_a_former_job_does_not_delete_files_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweep: int
) -> None:
    """The former one sleeps between its look for a later claim and its clean-up."""
    versions, whole = Versions(str(tmp_path)), VersionClaim._sweep
    later: list[tuple[VersionClaim, Path]] = []
    sweeps = 0

    def slow(self: VersionClaim, version: object) -> None:
        nonlocal sweeps
        sweeps += 1
        if sweeps == sweep:
            monkeypatch.undo()
            claim = versions.claim()
            later.append((claim, written(claim, tmp_path)))
        whole(self, version)  # type: ignore[arg-type]

    monkeypatch.setattr(VersionClaim, "_sweep", slow)
    former = versions.claim()
    mine = written(former, tmp_path)
    if sweep == 2:
        former.commit({"rows": 1})
    claim, output = later[0]
    assert (output / "part-0.parquet").exists()
    assert claim.commit({"rows": 2}).name == output.name
    assert mine.exists() == (sweep == 2)  # it is the version before the newest
    current = versions.newest()
    assert current is not None
    assert current.state == {"rows": 2}


def test_a_foreign_directory_is_not_deleted(tmp_path: Path) -> None:
    other = tmp_path / "data" / "notes"
    other.mkdir(parents=True)
    claim = Versions(str(tmp_path)).claim()
    written(claim, tmp_path)
    claim.commit({})
    assert other.exists()


@pytest.mark.parametrize("continues", ["after this version", "after the former one", "not yet"])
def test_an_overtaken_job_reports_whether_its_version_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continues: str
) -> None:
    versions, write = Versions(str(tmp_path)), VersionClaim._write
    claim = versions.claim()
    written(claim, tmp_path)

    def overtaken(self: VersionClaim, number: int, version: object) -> None:
        monkeypatch.undo()
        if continues == "after the former one":
            versions.claim()
        write(self, number, version)  # type: ignore[arg-type]
        if continues == "after this version":
            versions.claim()
        elif continues == "not yet":
            versions.store.write("manifest/00000009-0123456789ab.claim", b"")

    monkeypatch.setattr(VersionClaim, "_write", overtaken)
    if continues == "after this version":
        assert claim.commit({"rows": 1}).state == {"rows": 1}
        current = versions.newest()
        assert current is not None
        assert current.state == {"rows": 1}
        return
    told = "without a new version" if continues == "after the former one" else "not known whether"
    with pytest.raises(HistoryError, match=told):
        claim.commit({"rows": 1})


@pytest.mark.parametrize("failing", ["directories", "remove_directory", "remove"])
def test_a_version_is_complete_even_if_a_former_one_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    versions = Versions(str(tmp_path))
    for rows in range(3):
        claim = versions.claim()
        written(claim, tmp_path)
        if rows == 2:
            (tmp_path / "data" / "00000001-0123456789ab").mkdir()

            def fail(*_: object) -> None:
                raise HistoryError("the store does not answer", remedy="")

            monkeypatch.setattr(ArchiveDirectory, failing, fail)
        claim.commit({"rows": rows})
    current = versions.newest()
    assert current is not None
    assert current.state == {"rows": 2}


def test_an_error_while_removing_a_directory_is_a_quire_error(
    tmp_path: Path,
) -> None:
    store = ArchiveDirectory(str(tmp_path))
    store.remove_directory("gone")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(HistoryError, match="cannot be read or written"):
        store.remove_directory("file")
