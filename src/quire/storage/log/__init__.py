"""The write path: batches of adds become groups of the log, which are written and synced.

Read `batch`, `appender`, `group_commit`, `preallocation`.
"""
