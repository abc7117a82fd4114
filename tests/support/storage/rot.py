"""The check of a store's answers when one bit of its disk is wrong.

The store may return the right bytes or report damage. It may deny an entry only if it reports that
absence is unknown. What it knows of fences, keys, explicit LACs and deletions must be right.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from quire.codec.log.state_records import BLOCK_BYTES
from quire.errors import DamagedError, QuireError
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.promises import PromisingStore
from tests.support.storage.storage import key_of


def bits_of(
    disk: SimDisk, name: str, rng: random.Random, per_page: int
) -> Iterator[tuple[int, int]]:
    """Yield the (offset, bit) pairs to flip: `per_page` random ones in each written page of a file.

    Of pages that were only preallocated, the first and the last get one pair each.
    """
    file = disk.open(name)
    size = file.size()
    blank = []
    for page in range(0, size, BLOCK_BYTES):
        data = bytes(file.read(page, BLOCK_BYTES) or b"").rstrip(b"\0")
        if not data:
            blank.append(page)
        for _ in range(per_page if data else 0):
            yield page + rng.randrange(len(data)), rng.randrange(8)
    file.close()
    for page in {*blank[:1], *blank[-1:]}:
        yield page + rng.randrange(min(BLOCK_BYTES, size - page)), rng.randrange(8)


def check_rotten(subject: PromisingStore) -> Counter[str]:
    """Check the answers of a store with a wrong bit, and return their number by kind."""
    answers: Counter[str] = Counter()
    store, promises = subject.store, subject.promises
    unknown = store.negatives_unknown
    answers["unknown"] += unknown
    # If fences may be lost, no adds are accepted at all.
    assert not (unknown and store.writable)
    for key, entry in promises.acknowledged.items():
        try:
            assert subject.read(*key) == [entry], f"{key} is not what was written"
            answers["right"] += 1
        except DamagedError:
            answers["damaged"] += 1
        except (NoEntry, NoLedger):
            assert unknown, f"{key} was denied"
            answers["maybe absent"] += 1
    for ledger_id, info in store.ledgers.items():
        known = info.master_key == key_of(ledger_id)
        assert known or (unknown and not info.master_key), f"ledger {ledger_id}: a wrong key"
        packets = promises.seen_lacs.get(ledger_id, set())
        assert info.explicit_lac is None or info.explicit_lac in packets
        last = max((key[1] for key in promises.seen if key[0] == ledger_id), default=-1)
        assert info.last_entry_id <= last, f"ledger {ledger_id} ends after its last entry"
        assert info.last_add_confirmed <= last, f"ledger {ledger_id}: an unknown LAC"
    if not unknown:
        _check_state(subject)
    return answers


def _check_state(subject: PromisingStore) -> None:
    """Check fences, explicit LACs, ends and deletions of a store that reports no unknown loss."""
    store, promises = subject.store, subject.promises
    for ledger_id in promises.fenced:
        assert store.ledgers[ledger_id].fenced, f"the fence of ledger {ledger_id} is gone"
    for ledger_id, packet in promises.lacs.items():
        known = store.ledgers[ledger_id].explicit_lac
        assert known is not None, f"the explicit LAC of ledger {ledger_id} is gone"
        assert known >= packet, f"the explicit LAC of ledger {ledger_id} is an older one"
    for ledger_id in {key[0] for key in promises.acknowledged}:
        last = max(key[1] for key in promises.acknowledged if key[0] == ledger_id)
        assert store.last_entry_id(ledger_id) >= last, f"ledger {ledger_id} ends too early"
    for ledger_id in promises.deleted:
        assert ledger_id not in store.ledgers, f"ledger {ledger_id} is back after its deletion"
    for ledger_id in promises.refused - store.ledgers.keys():
        assert store.is_refused(ledger_id), f"ledger {ledger_id} is no longer refused"


def sweep_rot(
    subject: PromisingStore, names: Sequence[str], rng: random.Random, per_page: int
) -> Counter[str]:
    """Flip `per_page` bits in each page of these files, one at a time, and check the answers.

    The answers are those of an open store, of a store that starts with the damaged file, and of one
    that starts once more after that. Returns how many there were of each kind.
    """
    answers: Counter[str] = Counter()
    for name in names:
        for at, bit in list(bits_of(subject.sim, name, rng, per_page)):
            answers["flips"] += 1
            try:
                if subject.serving:
                    subject.sim.flip_bit(name, at, bit)
                    answers += check_rotten(subject)
                    subject.sim.flip_bit(name, at, bit)
                answers += _started(subject, name, at, bit)
            except AssertionError as error:
                raise AssertionError(f"bit {bit} of byte {at} of {name}: {error}") from error
    return answers


def _started(promising: PromisingStore, name: str, at: int, bit: int) -> Counter[str]:
    rotten = promising.sim.copy()
    rotten.kill()
    rotten.flip_bit(name, at, bit)
    subject = PromisingStore(rotten, promising.config, promising.promises.copy())
    try:
        subject.open()
    except QuireError:
        return Counter({"refused to start": 1})
    answers = check_rotten(subject)
    subject.idle()
    rotten.kill()
    subject.open()
    return answers + check_rotten(subject)
