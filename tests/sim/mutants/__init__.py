"""Defects for the simulator to find: each is put into the real code, one at a time."""

from __future__ import annotations

from tests.sim.mutants import (
    answers,
    autorecovery,
    bookie,
    byzantine,
    calls,
    connections,
    damaged,
    directories,
    hostile,
    index_cache,
    items,
    jobs,
    loading,
    log_files,
    metadata,
    objects,
    older_metadata,
    publishing,
    quorum,
    racks,
    reader,
    recovery,
    replacements,
    resizing,
    retention,
    scrub,
    space,
    spark,
    storage,
    streams,
    topics,
    writer,
)
from tests.sim.mutants.mutant import MUTANTS, Mutant, applied, kill

ROOMS = (
    writer, recovery, reader, quorum, bookie, storage, space, index_cache, loading, scrub,
    directories, replacements, resizing, log_files, connections, hostile, metadata, older_metadata,
    items, calls, autorecovery, jobs, byzantine, racks, streams, retention, publishing, spark,
    damaged, topics, objects, answers,
)  # fmt: skip

__all__ = ["MUTANTS", "ROOMS", "Mutant", "applied", "kill"]
