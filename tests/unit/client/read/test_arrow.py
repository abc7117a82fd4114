"""Runs of entries as Arrow batches."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.client.read import arrow
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec, EntryRun, check_batch
from quire.errors import UsageError


def run_of(payloads: list[bytes], digest: DigestType, first: int = 0) -> EntryRun:
    """Return a run as the answer to a batch read."""
    codec = EntryCodec(7, digest, b"secret")
    data, length = b"", 0
    for entry_id, payload in enumerate(payloads, first):
        length += len(payload)
        entry = codec.pack(entry_id, entry_id - 1, length, payload)
        data += len(entry).to_bytes(4, "big") + entry
    if not payloads:
        return EntryRun(7, first, b"", [], [], [], -1)
    return check_batch(codec, data, first, 0, len(data), limit=len(payloads))


@given(
    st.lists(st.binary(max_size=300), max_size=40),
    st.sampled_from(list(DigestType)),
    st.integers(0, 2**31 - 100),
)
def test_a_record_batch_has_the_ids_lengths_and_payloads_of_its_entries(
    payloads: list[bytes], digest: DigestType, first: int
) -> None:
    batch = arrow.record_batch(run_of(payloads, digest, first))
    batch.validate(full=True)
    assert batch.schema == arrow.schema()
    assert batch.to_pydict() == {
        "ledger_id": [7] * len(payloads),
        "entry_id": list(range(first, first + len(payloads))),
        "length": [len(payload) for payload in payloads],
        "value": payloads,
    }


@given(st.permutations(arrow.COLUMNS), st.integers(0, 4))
def test_a_record_batch_has_the_requested_columns_in_their_order(
    columns: list[str], count: int
) -> None:
    batch = arrow.record_batch(run_of([b"a", b""], DigestType.CRC32C), columns[:count])
    assert batch.schema.names == columns[:count]
    assert batch.schema == arrow.schema(columns[:count])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_values_can_be_taken_from_any_kind_of_buffer(kind: type) -> None:
    run = run_of([b"one", b"", b"three" * 1000], DigestType.CRC32C)
    same = EntryRun(7, 0, kind(run.data), run.offsets, run.ends, run.ledger_lengths, -1)
    assert arrow.values(same).to_pylist() == run.payloads()


def test_the_values_do_not_keep_the_run_alive() -> None:
    """A slice would hold megabytes for the sake of a few bytes, and Spark would send them."""
    run = run_of([b"x" * 10, b"y" * 10], DigestType.CRC32C)
    values = arrow.values(run)
    del run
    assert b"".join(values.to_pylist()) in values.buffers()[2].to_pybytes()
    assert values.nbytes < 100


def test_a_run_that_exceeds_an_arrow_array_is_refused() -> None:
    run = EntryRun(7, 0, b"", [0, 2**31 - 10], [2**31 - 20, 2**31 + 10], [0, 0], -1)
    with pytest.raises(UsageError, match=r"entries 0\.\.1 of ledger 7 are too large"):
        arrow.values(run)


def test_tables_join_runs_and_may_be_empty() -> None:
    runs = [run_of([b"a"], DigestType.CRC32), run_of([b"b", b"c"], DigestType.CRC32, 1)]
    joined = arrow.table(runs)
    assert joined["value"].to_pylist() == [b"a", b"b", b"c"]
    assert joined["entry_id"].to_pylist() == [0, 1, 2]
    assert arrow.table([]).schema == arrow.schema()
    assert isinstance(arrow.table([], ["entry_id"]), pa.Table)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_data_frame_without_its_package_says_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pandas, pyarrow raised ModuleNotFoundError, which says nothing of an extra."""
    entries = arrow.table([run_of([b"one"], DigestType.CRC32C)])
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(UsageError, match=f"the Python package {package}, which is not installed"):
        getattr(arrow, f"to_{package}")(entries)
