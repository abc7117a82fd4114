"""The driver that keeps the metadata of a cluster in one SQLite file, shared by the processes of
one machine.

Start with `store`.
"""
