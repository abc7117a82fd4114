"""Objects: immutable blobs with a name, each in one closed ledger.

Start with `objects`. `format` defines the stored bytes, `reader` reads ranges, and `source` cuts
the bytes of an object into chunks.
"""
