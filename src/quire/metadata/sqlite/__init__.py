"""The driver that keeps the metadata of a cluster in one SQLite file, shared by the processes of
one machine.

`store` is the driver. `file` is the open file on its thread, guarded by `open_file_check`;
`session` says which processes are alive; `tree` and `watch` are the tree and the watches. Start
with `store`.
"""
