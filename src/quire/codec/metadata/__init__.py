"""The values in the metadata store of a cluster, in Apache BookKeeper's formats.

Start with `ledger_metadata`.
"""
