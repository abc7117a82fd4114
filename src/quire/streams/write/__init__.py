"""The writer of a stream: from `append` to entries of a ledger, and from one segment to the next.

Read `writer`, `writer_task`, `segments`, `takeover`.
"""
