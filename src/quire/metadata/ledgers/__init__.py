"""Rules for the metadata of ledgers in every store: changes, sizes, creations and replication
marks.

Start with `update`.
"""
