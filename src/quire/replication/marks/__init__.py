"""The data that replication keeps in the metadata store: marks, locks, pauses and notes.

`marks` and `locks` access the under-replication tree in Apache BookKeeper's layout, which Java's
auditors and workers share. `pauses`, `job_announcements`, `copy_notes` and `notes` are values of
Quire. This package imports nothing else of `replication`.
"""
