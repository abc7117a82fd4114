"""Reading a ledger, whether it is closed or still written.

Read `reader` and `engine`, then `follow` and `tail`. It may import `cluster` and `observability`.
"""
