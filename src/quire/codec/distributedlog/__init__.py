"""DistributedLog's formats: the records, segments, names and positions of streams.

Start with `record`.
"""
