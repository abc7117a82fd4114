"""The marks of ledgers that lack replicas, and their locks: the values and paths are Apache's."""

from __future__ import annotations

import json

from quire.codec.metadata.underreplication import (
    LockHolder,
    Underreplicated,
    lock_owner,
    lock_path,
    mark_path,
)
from tests.support.metadata.golden import GOLDEN, NAMED

# -- the tree of marks ------------------------------------------------------------------------


def test_marks_and_locks_are_encoded_like_apaches() -> None:
    one = NAMED["ur_ledger_one_replica"]
    value = Underreplicated(("10.0.0.2:3181",), 1_600_000_000_123)
    assert value.encode().hex() == one["hex"]
    assert Underreplicated.decode(bytes.fromhex(one["hex"])) == value
    two = Underreplicated(("10.0.0.2:3181", "10.0.0.3:3181"))
    assert two.encode().hex() == NAMED["ur_ledger_two_replicas_no_ctime"]["hex"]
    none = NAMED["ur_ledger_no_replica"]
    assert Underreplicated((), 1_600_000_000_123).encode().hex() == none["hex"]
    assert LockHolder("host-1").encode().hex() == NAMED["ur_lock"]["hex"]
    assert lock_owner(bytes.fromhex(NAMED["ur_lock"]["hex"])) == "host-1"


def test_the_paths_of_marks_and_locks_equal_apaches() -> None:
    known = [vector for vector in GOLDEN["vectors"] if "underreplicationLock" in json.dumps(vector)]
    assert known
    for vector in known:
        for found in _with_key(vector, "underreplicated"):
            ledger_id = int(found["underreplicated"].rpartition("urL")[2])
            assert mark_path("/ledgers/underreplication", ledger_id) == found["underreplicated"]
            assert (
                lock_path("/ledgers/underreplication", ledger_id) == (found["underreplicationLock"])
            )
    assert mark_path("/r", 12345) == "/r/ledgers/0000/0000/0000/3039/urL0000012345"


def _with_key(value: object, key: str) -> list[dict[str, str]]:
    if isinstance(value, list):
        return [found for item in value for found in _with_key(item, key)]
    if not isinstance(value, dict):
        return []
    found = [value] if key in value else []
    return found + [one for item in value.values() for one in _with_key(item, key)]


def test_a_mark_gains_new_bookies_and_is_otherwise_unchanged() -> None:
    mark = Underreplicated(("a:1",), 5)
    assert mark.adding(["a:1"], 9) is None
    assert mark.adding(["b:1", "a:1"], 9) == Underreplicated(("a:1", "b:1"), 9)
