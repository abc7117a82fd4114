"""The start of a store: read the log, tell a torn tail from damage, and build the index.

Read `log_recovery`, `replay`, then `startup`. Imports `segment`, `log` and `read`.
"""
