"""Work that a store does beside reads and writes: sealing, garbage collection, compaction, scrub,
and the repair of damaged segments.

Start with `maintenance`, which has all of it. Imports all of storage but `inspect`, the store and
the directories.
"""
