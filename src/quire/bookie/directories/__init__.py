"""The data directories of a bookie: whose they are, whether one is new, lost, replaced or older
than it should be.

Start with `identity`.
"""
