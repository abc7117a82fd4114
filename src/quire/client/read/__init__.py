"""Reading a ledger, whether it is closed or still written.

Read `reader`, `engine`, then `follow` and `tail`.
"""
