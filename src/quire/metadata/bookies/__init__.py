"""The records of each bookie in the metadata store, for every driver.

They are its data directories, orders of operators, and the marks of garbage collection. Each module
defines the value of one kind of node, with its reads and writes. Start with `nodes`.
"""
