"""Publishing a batch of records exactly once, for writers that work in many processes.

Each process fills ledgers with `segment_builder`. `publishing` makes them segments of the stream in
one transaction, after the end that `stream_end` finds. `published` defines what the stream
remembers of its batches, and `plans` who may publish one now.
"""
