"""Searching an index cache for a ledger finds the same as decoding all of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import hypothesis.strategies as st
from hypothesis import given

from quire.codec.log import index_cache as fmt
from quire.codec.log.footer import TRAILER_BYTES
from quire.codec.log.index_cache import CachedLedger, CacheEnd, CacheHead
from quire.codec.log.state_records import FormatError
from quire.storage.recovery.index_cache import CACHE_NAME, CachedIndex, LedgerSearch, open_cache
from quire.storage.segment import sealed_rows
from quire.storage.segment.segment import LOG_DIRECTORY
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.storage import sim_disk

DIRECTORY_ID = bytes(range(16))
IDS = st.one_of(st.integers(0, 60), st.integers(-(1 << 63), (1 << 63) - 1))
LACS = st.one_of(st.none(), st.binary(max_size=20))
ROWS = st.lists(
    st.tuples(st.integers(1, 1 << 20), st.integers(0, 1 << 40), st.integers(0, 9), st.integers(1)),
    max_size=4,
    unique_by=lambda row: row[0],
)


@st.composite
def ledgers(draw: st.DrawFn, ledger_id: int) -> CachedLedger:
    made = [
        (number, first, first + extent, size % (1 << 32))
        for number, first, extent, size in sorted(draw(ROWS))
    ]
    packed = sealed_rows.pack(made)
    return CachedLedger(
        ledger_id, draw(st.sampled_from([b"", b"key", b"k" * 20])), draw(st.booleans()),
        draw(st.booleans()), draw(LACS), max((row[2] for row in made), default=-1), -1, 1, 1,
        sealed_rows.is_ordered(packed), packed,
    )  # fmt: skip


@st.composite
def caches(draw: st.DrawFn) -> list[list[CachedLedger]]:
    """Blocks of ledgers. Their ids are in ascending order or in any order."""
    ids = draw(st.lists(IDS, unique=True, max_size=20))
    if draw(st.booleans()):
        ids.sort()
    blocks: list[list[CachedLedger]] = [[]]
    for ledger_id in ids:
        if draw(st.integers(0, 3)) == 0:
            blocks.append([])  # A block may be empty.
        blocks[-1].append(draw(ledgers(ledger_id)))
    return blocks


def written(blocks: Sequence[Sequence[CachedLedger]], disk: SimDisk) -> list[tuple[int, int]]:
    """Write a cache, and return where each block of ledgers begins and ends."""
    disk.make_directory(LOG_DIRECTORY)
    segment = fmt.CachedSegment(1, bytes(TRAILER_BYTES), 0, 0, 0, 0, fmt.decode_ids(b""))
    pieces = [
        *CacheHead(DIRECTORY_ID, 1, 1).encode(),
        *segment.encode(),
        *fmt.encode_dead({7: 8}),
    ]
    places = []
    for block in blocks:
        at = sum(map(len, pieces))
        pieces += fmt.encode_ledgers(block)
        places.append((at, sum(map(len, pieces))))
    pieces += CacheEnd(sum(map(len, blocks)), 1).encode()
    file = disk.create(CACHE_NAME)
    file.write(pieces, 0)
    file.close()
    return places


def searched(disk: SimDisk) -> LedgerSearch:
    cache = open_cache(disk, DIRECTORY_ID)
    assert cache is not None
    try:
        return cache.search(disk, lambda: None)
    finally:
        cache.close()


def decoded(disk: SimDisk) -> dict[int, bytes]:
    """Return the rows of all ledgers, as a start decodes them."""
    cache = open_cache(disk, DIRECTORY_ID)
    assert isinstance(cache, CachedIndex)
    cache._block(fmt.DEAD)
    found: dict[int, bytes] = {}
    while True:
        try:
            block = cache._block(fmt.LEDGERS)
        except FormatError:
            break
        found |= {one.ledger_id: one.rows for one in fmt.decode_ledgers(*block)}
    cache.close()
    return found


@given(caches(), st.lists(IDS, max_size=5))
def test_a_search_finds_the_same_rows_as_decoding(
    blocks: list[list[CachedLedger]], others: list[int]
) -> None:
    disk = sim_disk(1, cold_read_probability=0.0)
    written(blocks, disk)
    search, truth = searched(disk), decoded(disk)
    assert truth == {one.ledger_id: one.rows for block in blocks for one in block}
    for ledger_id in [*truth, *others]:
        assert search.rows(ledger_id) == truth.get(ledger_id, b"")


@given(caches(), st.data())
def test_a_damaged_block_hides_only_its_own_ledgers(
    blocks: list[list[CachedLedger]], data: st.DataObject
) -> None:
    """It does so whether the damage comes before or after the ids were read."""
    disk = sim_disk(1, cold_read_probability=0.0)
    places = written(blocks, disk)
    before = searched(disk)
    at = data.draw(st.integers(0, len(blocks) - 1))
    start, end = places[at]
    offset = data.draw(st.integers(start, end - 1))
    disk.flip_bit(CACHE_NAME, offset)
    searches = [before]
    try:
        searches.append(searched(disk))
    except FormatError:
        assert offset < start + fmt.BLOCK_HEADER_BYTES  # Nothing after the header is found.
    in_header = offset < start + fmt.BLOCK_HEADER_BYTES
    for search in searches:
        for number, block in enumerate(blocks):
            for one in block:
                found = search.rows(one.ledger_id)
                if number == at:
                    assert found == b""
                elif search is before or not in_header:
                    assert found == one.rows
                else:
                    assert found in (b"", one.rows)


def test_no_flipped_bit_gives_a_wrong_search_result() -> None:
    def one(ledger_id: int, number: int) -> CachedLedger:
        rows = sealed_rows.pack([(number, 0, 3, 400)])
        return CachedLedger(ledger_id, b"key", False, False, None, 3, 2, 1, number, True, rows)

    blocks = [[one(1, 5), one(2, 6)], [one(3, 7)], [one(-4, 8), one(1 << 62, 9)]]
    rows = {ledger.ledger_id: ledger.rows for block in blocks for ledger in block}
    whole = sim_disk(1, cold_read_probability=0.0)
    written(blocks, whole)
    search = searched(whole)
    file = whole.open(CACHE_NAME)
    size = file.size()
    file.close()
    missed = 0
    for offset in range(size):
        disk = whole.copy()
        disk.flip_bit(CACHE_NAME, offset)
        later = LedgerSearch(disk)
        later._offsets, later._lowest, later._highest = (
            search._offsets, search._lowest, search._highest,
        )  # fmt: skip
        searches = [later]
        with suppress(FormatError):
            searches.append(searched(disk))
        for found in searches:
            for ledger_id, right in rows.items():
                answer = found.rows(ledger_id)
                assert answer in (b"", right)
                missed += not answer
    assert missed
