"""The driver that keeps the metadata in one SQLite file, for the processes of one machine.

`store` is the driver. `file` is the open file and its thread; `open_file_check` notices if the file
is deleted or replaced meanwhile. `session` records which processes are alive. `tree` and `watch`
are the tree and the watches. Start with `store`.
"""
