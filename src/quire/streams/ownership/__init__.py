"""The ledgers that streams, objects and datasets own.

`named_ledgers` reads the ledgers that owners name. `owners` finds the owner of a ledger,
`owner_index` those of many ledgers, `orphans` finds ledgers without an owner, and `lost_ledgers`
finds ledgers that are named but do not exist.
"""
