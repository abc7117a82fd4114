"""The write path of the log: batches of adds become groups, which are written and synced.

Start with `appender`, which runs on the event loop. `group_commit` writes the groups on the log's
worker, and `preallocation` prepares segment files. This folder imports only `segment`.
"""
