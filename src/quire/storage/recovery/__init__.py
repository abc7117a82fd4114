"""The start of a store: read the log, distinguish a torn end from damage, and build the index.

Read `log_recovery` first, then `replay` and `startup`. This folder imports `segment`, `log` and
`read`. Only `later_versions` also imports a module of `background`, `quarantine_record`.
"""
