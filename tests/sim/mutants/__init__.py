"""Defects for the simulator to find: each is put into the real code, one at a time."""

from __future__ import annotations

from tests.sim.mutants import bookie, metadata, quorum, reader, recovery, storage, streams, writer
from tests.sim.mutants.mutant import MUTANTS, Mutant, applied, kill

ROOMS = (writer, recovery, reader, quorum, bookie, storage, metadata, streams)

__all__ = ["MUTANTS", "ROOMS", "Mutant", "applied", "kill"]
