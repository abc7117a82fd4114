"""The commands `quire cluster ...`.

`metadata` makes and destroys a cluster, `bookies` lists bookies and where they are, `jobs` moves
entries and pauses such jobs, and `gc` controls garbage collection.
"""
