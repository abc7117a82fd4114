"""The records of each bookie in the metadata store, for every driver.

They are its data directories, orders of operators, the marks of garbage collection, notes about
damage, and the command that started it. Each of these modules defines the value of one kind of
node, with its reads and writes. `unwritable` and `tls_files` define properties of a registration.
Start with `nodes`.
"""
