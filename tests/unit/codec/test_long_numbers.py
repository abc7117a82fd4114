"""A damaged node may have a number of thousands of digits, which Python refuses to read.

That is damage like any other: the caller gets the error of the node, or the node is no item.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quire.codec.distributedlog.lock import NO_NUMBER, LockMember
from quire.codec.distributedlog.namespace_binding import NamespaceBinding
from quire.codec.distributedlog.segment import parse_segment_name
from quire.codec.metadata import (
    cookie,
    layout,
    ledger_metadata_format,
    registration,
    underreplication,
)
from quire.codec.metadata.ledger_path import (
    FLAT,
    HIERARCHICAL,
    HIGH_ORDER_PREFIX,
    high_order_of,
    leaf_digits,
    sequence_of,
)
from quire.errors import MetadataError, QuireError

LONG = "9" * 5_000


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (cookie.decode, f'{LONG}\nbookieHost: "a"'.encode()),
        (layout.decode, f"{LONG}\na:1".encode()),
        (layout.decode, f"2\na:{LONG}".encode()),
        (ledger_metadata_format.decode, f"BookieMetadataFormatVersion\t{LONG}\n".encode()),
        (lambda data: NamespaceBinding.from_bytes(data, "zk"), f"{LONG}\nBKDL\n{{}}".encode()),
        (FLAT.ledger_id_of, f"L{LONG}"),
        (HIERARCHICAL.ledger_id_of, f"00/0000/L{LONG}"),
        (sequence_of, f"/ledgers/idgen/ID-{LONG}"),
    ],
    ids=lambda one: getattr(one, "__module__", None),
)
def test_it_is_damage(decode: Callable[[Any], Any], data: Any) -> None:
    with pytest.raises(QuireError):
        decode(data)


def test_a_bookie_id_with_such_a_port_has_no_address() -> None:
    with pytest.raises(MetadataError):
        registration.decode(b"", f"host:{LONG}")


def test_a_name_with_such_a_number_is_no_item() -> None:
    assert high_order_of(HIGH_ORDER_PREFIX + LONG) is None
    assert leaf_digits(f"L{LONG}") is None
    assert underreplication.vote_number(f"V_{LONG}") is None
    assert parse_segment_name(f"logrecs_{'1' * 18}_{'2' * 18}_{LONG}_1_1") is None
    assert LockMember.parse(f"member_a_s1_{LONG}", b"", 1).number == NO_NUMBER
    assert LockMember.parse(f"member_a_s{LONG}_1", b"id", 7).session_id == 7
