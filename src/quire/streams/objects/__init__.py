"""Objects: immutable blobs with a name, each in one sealed ledger.

Start with `objects`.
"""
