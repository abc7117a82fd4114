"""Rules about the metadata of ledgers that hold for every driver: changes, sizes, creations and
under-replication.

Start with `update`.
"""
