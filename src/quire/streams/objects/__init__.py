"""Objects: immutable blobs with a name, each in one sealed ledger.

Start with `objects`. `format` defines the stored bytes, `reader` reads ranges, and `source` cuts
the bytes of an object into chunks.
"""
