"""Reading a ledger, whether it is closed or still being written.

Read `reader` and `engine`, then `follow` and `tail`. `outcomes` is for commands that show the
entries of a damaged ledger. This package may import `cluster` and `observability`.
"""
