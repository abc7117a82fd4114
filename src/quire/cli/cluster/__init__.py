"""The commands `quire cluster ...`.

`metadata` creates and destroys a cluster, `bookies` lists bookies and their locations, `jobs` moves
entries and pauses such jobs, `copies` lists continuous copies of streams, and `gc` controls garbage
collection.
"""
