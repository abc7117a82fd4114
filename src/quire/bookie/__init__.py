"""The bookie: one process that stores entries in its data directories and serves them to clients.

`main` is the process, `server` the bookie itself, wired from the parts below. `protocol` serves
clients, `directories` knows whose the data directories are, `background` works for the cluster.
May import the codec, core, storage, metadata and net. Read `server`, then `protocol`.
"""
