"""Reports about a data directory that need no running bookie.

None of them but `erase` changes a file.
"""
