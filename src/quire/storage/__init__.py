"""A bookie's disk: log segments, index, state records, garbage collection.

`store` is what a bookie uses, `directories` the same over several data directories. Both are built
from the folders here, each of which imports only those before it: `segment` (one segment of the
log, and the index of all), `log` (the write path), `read` (the read path), `recovery` (a start),
`background` (what a store does beside these) and `inspect` (reports about a data directory).
`interfaces` has what storage is handed. Only `disk` touches `os`, and only `worker` has threads.
"""
