"""Copies of a stream in another cluster, with the same segments and entries.

Start with `mirror`. `check` decides whether the target is still a copy, `copy` copies one ledger,
`lag` measures how far the copy is behind, and `leftovers` deletes the ledgers of failed attempts.
`topics` creates a topic in the target once the target has copies of all its partitions.
"""
