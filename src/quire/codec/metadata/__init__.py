"""The values that a cluster keeps in its metadata store, in Apache BookKeeper's formats.

Start with `ledger_metadata`.
"""
