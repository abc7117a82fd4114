"""One bit in each page of each file of a store is wrong, one at a time.

`QUIRE_ROT_BITS` is the number of bits tried in each page, and `QUIRE_CRASH_SEED` selects them.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest

from quire.storage.read.reader import Reader
from quire.storage.segment.segment import LOG_DIRECTORY
from tests.sim.mutants.mutant import Apply
from tests.sim.mutants.storage.storage import a_damaged_copy_is_no_copy, lost_groups_are_not_missed
from tests.support.crash.crash_scripts import COMPACTS, DELETES, ROLLS
from tests.support.crash.crash_sweep import Script, SideBySide
from tests.support.long import long_after
from tests.support.storage.rot import sweep_rot
from tests.support.storage.storage import sim_disk

SEED = int(os.environ.get("QUIRE_CRASH_SEED", "1"))
BITS = int(os.environ.get("QUIRE_ROT_BITS", "1"))
IDENTITY_BITS = 40
"""The number of bits tried in each small file, which has one page."""
IDENTITY = ["current/DIRECTORY", "current/VERSION"]


def played(script: Script, *, ends: str) -> SideBySide:
    """Play a script without an index in memory, so that damaged bytes are read.

    If the store has not been idle, its last segment has no footer, and its last group might be
    torn.
    """
    disk = sim_disk(1, cold_read_probability=0.0)
    config = replace(script.config, footer_cache_bytes=0)
    subject = SideBySide(disk, config, random.Random(SEED))
    disk.before_operation = subject.pause
    subject.open()
    for step in script.steps():
        step(subject)
    if ends != "busy":
        subject.idle()
    if ends == "closed":
        subject.close()
    return subject


@pytest.mark.parametrize("ends", ["closed", "serving", "busy"])
@pytest.mark.parametrize(
    "script", long_after(1, [ROLLS, DELETES, COMPACTS]), ids=lambda script: script.name
)
def test_a_flipped_bit_is_neither_served_nor_taken_for_absence(
    script: Script, ends: str, capsys: pytest.CaptureFixture[str]
) -> None:
    subject = played(script, ends=ends)
    names = [f"{LOG_DIRECTORY}/{name}" for name in subject.disk.list(LOG_DIRECTORY)]
    names = [name for name in names if name.endswith((".seg", "CLEAN"))]
    answers = sweep_rot(subject, names, random.Random(SEED), BITS)
    with capsys.disabled():
        told = ", ".join(f"{count} {what}" for what, count in sorted(answers.items()))
        print(f"\nbit rot, {script.name}, {ends}: {told}")
    assert answers["flips"] > 5
    assert answers["damaged"] > 5
    assert answers["right"] > 10 * answers["damaged"]
    assert not answers["refused to start"]
    # Sealed segments describe their own contents, so all damage is known.
    assert not (ends == "closed" and answers["unknown"])


@pytest.mark.parametrize(
    ("defect", "ends"),
    [(a_damaged_copy_is_no_copy, "closed"), (lost_groups_are_not_missed, "serving")],
    ids=["absent", "not missed"],
)
def test_the_sweep_finds_damage_that_is_denied(
    defect: Apply, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = played(ROLLS, ends=ends)
    names = [f"{LOG_DIRECTORY}/{name}" for name in subject.disk.list(LOG_DIRECTORY)]
    defect(monkeypatch)
    with pytest.raises(AssertionError, match="denied"):
        # The newest first: of the others no groups are scanned.
        sweep_rot(subject, names[::-1], random.Random(SEED), 4)


def test_the_sweep_finds_unchecked_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = played(ROLLS, ends="closed")
    real = Reader._frames

    def frames(self: Reader, *arguments: Any) -> tuple[memoryview, int, int]:
        view, at, _ = real(self, *arguments)
        return view, at, len(view)

    monkeypatch.setattr(Reader, "_frames", frames)
    names = [f"{LOG_DIRECTORY}/{name}" for name in subject.disk.list(LOG_DIRECTORY)]
    with pytest.raises(AssertionError, match="not what was written"):
        sweep_rot(subject, names, random.Random(SEED), 4)


def test_a_flipped_bit_in_the_identity_is_reported() -> None:
    """The bookie does not start, or nothing is lost, or it reports a possible loss."""
    subject = played(ROLLS, ends="closed")
    answers = sweep_rot(subject, IDENTITY, random.Random(SEED), max(BITS, IDENTITY_BITS))
    assert answers["flips"] >= 2 * IDENTITY_BITS
    assert answers["refused to start"] > IDENTITY_BITS
