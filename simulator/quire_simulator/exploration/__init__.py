"""An exhaustive search over the states of the replication protocol, for small bounds.

The simulator draws schedules at random. This package tries every schedule: each order in which a
writer, recoveries, bookies and the metadata store can take their steps. The decisions are made by
the real code: `quire.core`, `quire.metadata.ledgers.update` and
`quire.bookie.background.complete_ledger`. A few lines here take the place of the code that uses the
network, the disk and the event loop, and name the file that they stand for.

Read `bounds`, `values`, `model`, then `writer`, `recoverer` and `bookies`, then `properties` and
`judge`, and last `search`. It imports nothing else of the simulator.
"""
