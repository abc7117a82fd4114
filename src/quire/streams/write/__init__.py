"""The writer of a stream, from `append` to the entries of ledgers.

Read `writer`, `writer_task`, `pending_entry` and `segments`, in this order. `takeover` shows how a
writer begins, `producers` how a retry creates no duplicate, and `lock` implements Java's lock.
"""
