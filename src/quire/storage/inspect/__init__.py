"""Reports about a data directory that need no running bookie.

Only `erase` and `rebuild` change files. Imports all of storage but the store and the directories.
"""
