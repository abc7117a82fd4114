"""Objects: immutable blobs with a name, each in one sealed ledger.

Start with `objects`; `format` has the bytes, `reader` reads ranges, `source` cuts what is put.
"""
