"""The keys of the jobs' JSON in docs/reference/pipelines.md, compared with the code of the results.

No job is run: `tests/spark` does that.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "pipelines.md"
KEY = re.compile(r'"([a-z_]+)":')
NAMES = re.compile(r"names = \(([^)]*)\)|for name in \(([^)]*)\)")


def keys_of(cls: type) -> set[str]:
    """Return the keys that `as_json` writes, by its source and the fields of the class."""
    if not hasattr(cls, "as_json"):
        return {field.name for field in dataclasses.fields(cls)}
    source = inspect.getsource(cls.as_json)
    found = set(KEY.findall(source))
    for names in NAMES.findall(source):
        found |= set(re.findall(r'"([a-z_]+)"', "".join(names)))
    if "asdict(self)" in source:
        found |= {field.name for field in dataclasses.fields(cls)}
    return found


def row_of(job: str) -> tuple[set[str], set[str]]:
    """Return the keys in the row of a job: those of the result, and those of its parts."""
    text = PAGE.read_text()
    table = text[text.index("\n## JSON\n") :]
    rows = [line for line in table.splitlines() if line.startswith(f"| `{job}` |")]
    assert len(rows) == 1, job
    whole, _, parts = rows[0].split("|")[2].partition("`streams`:")
    whole = re.sub(r"\([^)]*\)", "", whole)
    parts = re.sub(r"\([^)]*\)", "", parts)
    keys = set(re.findall(r"`([a-z_]+)`", whole)) | ({"streams"} if parts else set())
    return keys, set(re.findall(r"`([a-z_]+)`", parts))


@pytest.mark.parametrize(
    ("job", "result", "part"),
    [
        ("ingest", "ingest.IngestResult", "ingest.IngestBatch"),
        ("compact", "compact.CompactResult", ""),
        ("compact --dry-run", "compact.CompactPreview", ""),
        ("offload", "offload.OffloadResult", "offload.StreamOffload"),
        ("history", "history.HistoryFacts", ""),
        ("replicate", "replicate.ReplicateResult", "replicate.StreamReplica"),
        (
            "replicate --dry-run",
            "replicate_preview.ReplicatePreview",
            "replicate_preview.ReplicaPreview",
        ),
    ],
)
def test_the_page_lists_the_keys_of_each_result(job: str, result: str, part: str) -> None:
    def found(name: str) -> set[str]:
        module, _, cls = name.partition(".")
        return keys_of(getattr(importlib.import_module(f"quire.spark.jobs.{module}"), cls))

    keys, parts = row_of(job)
    assert keys == found(result)
    assert parts == (found(part) if part else set())


def test_the_page_lists_the_keys_of_an_audit_and_its_parts() -> None:
    from quire.core.replicas import Finding
    from quire.spark.jobs.audit import AuditResult
    from quire.spark.jobs.repair import RepairResult

    keys, _ = row_of("audit")
    finding = {field.name for field in dataclasses.fields(Finding)}
    assert keys == keys_of(AuditResult) | finding | keys_of(RepairResult)
