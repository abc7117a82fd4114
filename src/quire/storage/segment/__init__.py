"""One segment of the log: its index in memory, its footer on disk, and the index of all segments.

Read `batch`, `segment`, `catalogue`, then `footer`. Imports nothing else of storage but its
interfaces.
"""
