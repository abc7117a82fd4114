"""Work that a bookie does for the cluster beside serving clients.

`garbage` drops ledgers that were deleted and `over_replicated` drops copies that nobody names, both
only while `collection_guard` allows it. `damage` reports what was lost here, with the rule of
`complete_ledger`. `orders` follows the orders of operators. Nothing here imports the other rooms of
the bookie. Start with `collection_guard`.
"""
