"""Every moment of short scripts, every state that a loss of power may leave: see `crash_sweep`.

`QUIRE_CRASH_STATES` says how many states are tried at each operation at most, and 20 or more that
each of them is tried in depth; `QUIRE_CRASH_SEED`, which of them, where there are more.
"""

from __future__ import annotations

import os

import pytest

from tests.support.crash.crash_scripts import FILLS, SCRIPTS
from tests.support.crash.crash_sweep import BrokenPromiseError, Counts, Script, Sweep
from tests.support.crash.disk_defects import DEFECTS, Defect

STATES = int(os.environ.get("QUIRE_CRASH_STATES", "6"))
SEED = int(os.environ.get("QUIRE_CRASH_SEED", "1"))
IN_DEPTH = 1 if STATES >= 20 else 12
"""One state of so many."""
DEFECT_STATES = 12
DEFECT_SEED = 1
"""With few states not every seed has the one that gives a defect away."""


def sweep(
    script: Script, states_max: int = STATES, every: int = IN_DEPTH, seed: int = SEED
) -> Counts:
    return Sweep(script, states_max=states_max, seed=seed, every=every).run()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_what_was_promised_holds_after_every_loss_of_power(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = sweep(script)
    with capsys.disabled():
        print(f"\ncrash sweep, {script.name}: {counts}")
    assert counts.operations > 50
    assert counts.states > counts.operations
    assert counts.second > 50
    assert counts.index
    assert counts.caches > 10
    assert counts.cached > 10
    assert counts.early > 100
    assert (counts.full > 100) == (script is FILLS)


@pytest.mark.parametrize("one", DEFECTS, ids=lambda one: one.name)
def test_the_sweep_finds(one: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    one.apply(monkeypatch)
    with pytest.raises(BrokenPromiseError) as found:
        sweep(one.script, DEFECT_STATES, one.every, DEFECT_SEED)
    print(f"{one.name}: {found.value}")
