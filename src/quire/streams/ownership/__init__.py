"""Which streams, objects and datasets own which ledgers.

`named_ledgers` reads what owners name. `owners` asks for the owner of a ledger, `orphans` finds
ledgers without one, and `lost_ledgers` finds ledgers that are named and do not exist.
"""
