"""Every moment of short scripts, and every state that a power loss may leave (see `crash_sweep`).

`QUIRE_CRASH_STATES` is the limit of states tried at each operation. With 20 or more, each of them
is tried in depth. `QUIRE_CRASH_SEED` selects states if there are more.
"""

from __future__ import annotations

import os

import pytest

from tests.support.crash.crash_scripts import COMPACTS, FILLS, SCRIPTS
from tests.support.crash.crash_sweep import BrokenPromiseError, Counts, Script, Sweep
from tests.support.crash.disk_defects import DEFECTS, Defect

STATES = int(os.environ.get("QUIRE_CRASH_STATES", "6"))
SEED = int(os.environ.get("QUIRE_CRASH_SEED", "1"))
IN_DEPTH = 1 if STATES >= 20 else 12
"""One state in this many is tried in depth."""
LONG = (COMPACTS, FILLS)
"""The scripts that are left to `make test-long`. `test_compaction_crash` tries compactions too."""
DEFECT_STATES = 12
DEFECT_SEED = 1
"""With few states, not every seed includes the one that reveals a defect."""


def sweep(
    script: Script, states_max: int = STATES, every: int = IN_DEPTH, seed: int = SEED
) -> Counts:
    return Sweep(script, states_max=states_max, seed=seed, every=every).run()


@pytest.mark.parametrize(
    "script",
    [pytest.param(one, marks=pytest.mark.long if one in LONG else ()) for one in SCRIPTS],
    ids=lambda script: script.name,
)
def test_every_acknowledged_entry_survives_a_power_loss_at_any_operation(
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
    assert counts.searched > 10
    assert (counts.full > 100) == (script is FILLS)


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, marks=pytest.mark.long if at % 6 else ()) for at, one in enumerate(DEFECTS)],
    ids=lambda one: one.name,
)
def test_the_sweep_finds_each_defect(one: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    one.apply(monkeypatch)
    with pytest.raises(BrokenPromiseError) as found:
        sweep(one.script, DEFECT_STATES, one.every, DEFECT_SEED)
    print(f"{one.name}: {found.value}")
