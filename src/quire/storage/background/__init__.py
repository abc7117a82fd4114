"""The background work of a store: sealing, garbage collection, compaction, scrub, and repair.

Start with `maintenance`, which creates all the jobs. This folder may import all of storage except
`inspect`, `store`, `directories` and `stats`.
"""
