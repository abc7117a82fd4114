"""A ledger's metadata always leaves space for its recovery and its close, in every store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.ledger_metadata_format import encode
from quire.errors import MetadataTooLargeError, UsageError
from quire.metadata.common import NODE_BYTES_MAX
from quire.metadata.interface import BookieAddress, MetadataStore
from quire.metadata.ledgers import size as ledger_size

ENSEMBLE = ("bookie-1.example.com:3181", "bookie-2.example.com:3181", "bookie-3.example.com:3181")
OTHERS = ("bookie-4.example.com:3181", "bookie-5.example.com:3181", "bookie-6.example.com:3181")
PLAIN = LedgerMetadata(3, 3, 2, (Segment(0, ENSEMBLE),), password=b"secret", ctoken=2**62)
LAST = 2**63 - 1


def grown(value: LedgerMetadata, size: int) -> LedgerMetadata:
    """The metadata with custom metadata that makes it exactly this large."""
    filled = replace(value, custom={"k": b"x" * size})
    return replace(value, custom={"k": b"x" * (2 * size - len(encode(filled)))})


def refused(value: LedgerMetadata) -> bool:
    try:
        ledger_size.encode_new(value)
    except UsageError:
        return True
    return False


def largest_new() -> LedgerMetadata:
    """The largest metadata with which a ledger can be created."""
    low, high = NODE_BYTES_MAX // 2, NODE_BYTES_MAX + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refused(grown(PLAIN, middle)) else (middle, high)
    return grown(PLAIN, low)


async def test_the_largest_new_ledger_has_room_for_ensemble_changes_and_its_close(
    ledger_store: MetadataStore,
) -> None:
    ledger_id, stored = await ledger_store.create_ledger(largest_new())
    changed = stored.value
    for change in range(ledger_size.ENSEMBLE_CHANGES_RESERVED):
        ensemble = OTHERS if change % 2 == 0 else ENSEMBLE
        changed = changed.with_ensemble_from(2**62 + change, ensemble)
    stored = await ledger_store.write_ledger(ledger_id, changed, stored.version)
    recovering = stored.value.with_state(LedgerState.IN_RECOVERY)
    stored = await ledger_store.write_ledger(ledger_id, recovering, stored.version)
    closed = stored.value.with_close(LAST, LAST)
    stored = await ledger_store.write_ledger(ledger_id, closed, stored.version)
    assert (await ledger_store.read_ledger(ledger_id)).value == closed


async def test_a_new_ledger_without_room_for_later_changes_is_refused(
    ledger_store: MetadataStore,
) -> None:
    largest = largest_new()
    with pytest.raises(UsageError) as told:
        await ledger_store.create_ledger(grown(PLAIN, len(encode(largest)) + 1))
    for word in ("1,000,000 bytes", "100 ensemble changes", "not created", "custom metadata"):
        assert word in str(told.value)
    assert not next(iter([one async for one in ledger_store.list_ledgers()])).ledger_ids


@pytest.mark.parametrize("version", [2, 3])
async def test_a_ledger_with_full_metadata_can_be_recovered_and_closed(
    ledger_store: MetadataStore, version: int
) -> None:
    """Its writer may fill it to the limit, because later steps have reserved bytes."""
    plain = replace(PLAIN, format_version=version)
    ledger_id, stored = await ledger_store.create_ledger(plain)
    full = grown(plain, NODE_BYTES_MAX)
    assert len(encode(full)) == NODE_BYTES_MAX
    stored = await ledger_store.write_ledger(ledger_id, full, stored.version)
    with pytest.raises(MetadataTooLargeError, match=r"OPEN may have only 1,000,000 bytes"):
        await ledger_store.write_ledger(
            ledger_id, stored.value.with_ensemble_from(7, OTHERS), stored.version
        )
    recovering = stored.value.with_state(LedgerState.IN_RECOVERY)
    stored = await ledger_store.write_ledger(ledger_id, recovering, stored.version)
    now = stored.value
    for first in range(100):  # bookies that recovery replaces
        now = now.with_ensemble_from(first + 1, OTHERS)
    ledger_size.check_close(now)
    stored = await ledger_store.write_ledger(ledger_id, now.with_close(LAST, LAST), stored.version)
    assert (await ledger_store.read_ledger(ledger_id)).value.closed
    with pytest.raises(MetadataTooLargeError):
        await ledger_store.write_ledger(
            ledger_id, grown(stored.value, NODE_BYTES_MAX + ledger_size.CLOSING_BYTES + 1),
            stored.version,
        )  # fmt: skip


async def test_a_registration_that_is_too_large_is_refused(ledger_store: MetadataStore) -> None:
    address = BookieAddress("b-1", "127.0.0.1", 3181, {"note": "x" * NODE_BYTES_MAX})
    with pytest.raises(UsageError, match=r"registration of bookie b-1 .* too large"):
        await ledger_store.register_bookie(address)
    assert not (await ledger_store.bookies()).writable
