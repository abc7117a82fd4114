"""The write path of the log: batches of adds become groups, which are written and synced.

Start with `appender`, which runs on the event loop. `group_commit` writes the groups on the log's
worker, and `preallocation` prepares segment files. The only folder of storage that this one imports
is `segment`.
"""
