"""The bookie: one process that stores entries in its data directories and serves them to clients.

`main` is the process, and `server` connects the parts of the bookie. `protocol` serves clients,
`directories` checks the data directories, and `background` works for the cluster. This package may
import the codec, core, storage, metadata and net. Read `server`, then `protocol`.
"""
