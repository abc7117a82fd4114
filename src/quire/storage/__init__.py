"""A bookie's disk: the log, its index, state records, and the jobs that maintain them.

A bookie uses `store`, or `directories` if it has several data directories. Both are built from the
folders here. Each folder imports only those before it in this list:

- `segment`: a segment of the log, and the index of all segments.
- `log`: the write path.
- `read`: the read path.
- `recovery`: a start.
- `background`: what a store does beside reads and writes.
- `inspect`: reports about a data directory.

`interfaces` describes what storage needs from outside. Only `disk` uses `os`, and only `worker` has
threads.
"""
