"""Reading a ledger, whether it is closed or still written.

Read `reader` and `engine`, then `follow` and `tail`. This package may import `cluster` and
`observability`.
"""
