"""Defects for the simulator to find: each is put into the real code, one at a time."""

from __future__ import annotations

from tests.sim.mutants.bookies import (
    bookie,
    byzantine,
    directories,
    hostile,
    loading,
    metrics,
    protocol,
    replacements,
    resizing,
)
from tests.sim.mutants.clients import (
    answers,
    arguments,
    bad_copies,
    calls,
    connections,
    counters,
    quorum,
    reader,
    recovery,
    walkthroughs,
    writer,
)
from tests.sim.mutants.mutant import MUTANTS, Mutant, applied, kill
from tests.sim.mutants.replication import (
    autorecovery,
    items,
    jobs,
    lagging,
    metadata,
    older_metadata,
    racks,
    repairs,
    reports,
)
from tests.sim.mutants.storage import (
    damaged,
    index_cache,
    inspections,
    log_files,
    scrub,
    space,
    storage,
    stores,
)
from tests.sim.mutants.streams import objects, publishing, retention, spark, streams, topics

ROOMS = (
    writer, recovery, reader, quorum, bookie, storage, space, index_cache, loading, scrub,
    directories, replacements, resizing, log_files, connections, hostile, metadata, older_metadata,
    items, calls, autorecovery, jobs, byzantine, racks, streams, retention, publishing, spark,
    damaged, topics, objects, answers, inspections, reports, metrics, walkthroughs,
    bad_copies, arguments, stores, repairs, protocol, counters, lagging,
)  # fmt: skip

__all__ = ["MUTANTS", "ROOMS", "Mutant", "applied", "kill"]
