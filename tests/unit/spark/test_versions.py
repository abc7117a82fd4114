"""The versions of a compacted table when a job that was taken for dead continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.spark.jobs.archive.versions import VersionClaim, Versions


def written(claim: VersionClaim, tmp_path: Path) -> Path:
    """Write a file of the version to the directory of a claim, as Spark does."""
    directory = tmp_path / "data" / claim.output.rpartition("/")[2]
    directory.mkdir()
    (directory / "part-0.parquet").write_bytes(b"rows")
    return directory


@pytest.mark.parametrize("sweep", [1, 2])
def test_a_former_job_leaves_what_a_later_one_writes(
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


def test_a_directory_that_no_claim_made_is_left(tmp_path: Path) -> None:
    other = tmp_path / "data" / "notes"
    other.mkdir(parents=True)
    claim = Versions(str(tmp_path)).claim()
    written(claim, tmp_path)
    claim.commit({})
    assert other.exists()
