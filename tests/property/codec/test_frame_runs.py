"""Runs of entries in the log, compared with single entries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.entry.digest import master_key
from quire.codec.entry.frame_runs import FRAMES_AT_ONCE, Entries, FrameRun, entry_bytes, packed
from quire.codec.wire.v2 import BATCH_RESPONSE_BYTES, add_request, batch_read_response

KEY = master_key(b"")
equal = st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=30)
)
many = st.builds(
    lambda entry, count: [bytes([n % 251, *entry]) for n in range(count)],
    st.binary(max_size=8),
    st.integers(FRAMES_AT_ONCE - 1, 2 * FRAMES_AT_ONCE + 1),
)
runs_of_entries = st.lists(
    st.one_of(equal, many, st.lists(st.binary(max_size=40), min_size=1, max_size=30)), max_size=4
)


def run_of(entries: Sequence[bytes]) -> FrameRun:
    frames = [add_request(KEY, entry) for entry in entries]
    sizes = list(map(len, frames))
    size = sizes[0] if len(set(sizes)) == 1 else 0
    return FrameRun(memoryview(b"".join(frames)), len(frames), size, () if size else sizes)


@given(runs_of_entries, st.booleans())
def test_entries_in_runs_equal_the_single_entries(
    given_runs: list[list[bytes]], pack: bool
) -> None:
    entries = Entries()
    for one in given_runs:
        run = run_of(one)
        if pack:
            run.pack()
        entries.add(run)
    plain = [entry for one in given_runs for entry in one]
    assert list(map(bytes, entries)) == plain
    assert len(entries) == len(plain)
    assert [bytes(entries[index]) for index in range(len(plain))] == plain
    assert list(map(bytes, entries[1:3])) == plain[1:3]
    assert entry_bytes(entries) == entry_bytes(plain) == sum(map(len, plain))
    wanted = batch_read_response(0, 1, 0, 1, plain)[BATCH_RESPONSE_BYTES:]
    assert b"".join(packed(entries)) == b"".join(packed(plain)) == wanted
    assert list(map(bytes, entries)) == plain  # as well when they have been packed


def test_an_index_beyond_the_entries_is_refused() -> None:
    with pytest.raises(IndexError):
        Entries()[0]
