"""The start of a store: read the log, tell a torn end from damage, and build the index.

Read `log_recovery` first, then `replay` and `startup`. Of storage, this folder imports `segment`,
`log` and `read`.
"""
