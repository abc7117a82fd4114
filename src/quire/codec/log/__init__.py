"""The files of a bookie's log: segment headers, groups, footers and the index cache.

Start with `group`.
"""
