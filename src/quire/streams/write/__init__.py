"""The writer of a stream: from `append` to entries of a ledger, and from one segment to the next.

Read `writer`, `writer_task`, `pending_entry` and `segments`, in this order; `takeover` is how a
writer begins, `producers` how retries make no duplicates, and `lock` Java's lock.
"""
