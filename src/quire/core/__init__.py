"""Decisions without I/O. Time and randomness are arguments.

Start with `append`, which decides which adds are acknowledged. `recovery` draws conclusions from
the answers of bookies, and `placement` chooses the bookies of an ensemble. `fragments` computes
which entries a bookie should hold and how a member is replaced. `replicas` finds what is wrong with
the copies of a ledger. `compaction` chooses the segments of a log to compact. `ranges` has the sets
of integers that several of these use.
"""
