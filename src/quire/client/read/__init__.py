"""Reading a ledger, whether it is closed or still written.

Read `reader` and `engine`, then `follow` and `tail`. `outcomes` is for people who look at entries.
This package may import `cluster` and `observability`.
"""
