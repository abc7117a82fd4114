"""Work that a store does beside reads and writes: garbage collection, compaction, scrubbing and
repair of damaged segments.

Start with `background`.
"""
