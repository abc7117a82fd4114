"""The audit: every replica of every ledger is read and compared.

Start with `audit`, which decides what to read next. `pieces` does the reading, in one process or
in Spark's tasks. Imports `repair`.
"""
