"""The write path: batches of adds become groups of the log, which are written and synced.

Read `appender` (on the event loop), `group_commit` (on the log's worker), `preallocation`. Imports
`segment`.
"""
