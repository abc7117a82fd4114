"""Reports about a data directory that need no running bookie.

Only `erase` and `rebuild` change files. This folder may import all of storage except `store` and
`directories`.
"""
