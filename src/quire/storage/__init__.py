"""A bookie's disk: the log, its index, state records, and the jobs that maintain them.

A bookie uses `store`, or `directories` if it has several data directories. Both are built from the
folders here. Each folder imports only those before it in this list:

- `segment`: a segment of the log, and the index of all segments.
- `log`: the write path.
- `read`: the read path.
- `recovery`: reading the log when a store starts. Its module `later_versions` also imports
  `background.quarantine_record`.
- `background`: jobs of a running store, such as garbage collection, compaction and the scrub.
- `inspect`: reports about a data directory.

`interfaces` describes the disk and the threads that storage is given from outside. Only `disk` uses
the files of the operating system, and only `worker` creates threads.
"""
