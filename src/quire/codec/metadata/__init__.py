"""The values in the metadata store of a cluster, in Apache BookKeeper's formats.

Start with `ledger_metadata`. `stored_json` decodes the values of Quire's own that are JSON.
"""
