"""DistributedLog's formats: records, segments, names and positions of streams.

Start with `record`.
"""
