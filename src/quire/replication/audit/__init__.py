"""The audit, which reads and compares every replica of every ledger.

Start with `audit`, which decides what to read next. `pieces` reads replicas, in one process or in
Spark tasks. This package imports `repair`.
"""
