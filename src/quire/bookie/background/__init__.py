"""Background work that a bookie does for the cluster while it serves clients.

`garbage` drops deleted ledgers, and `over_replicated` drops copies that no metadata names. Both do
so only while `collection_guard` allows it, and notice with `copies` what is added meanwhile.
`damage` reports lost entries, with the rules of `complete_ledger`, and `damage_notes` tells people
about it. `orders` follows the orders of operators. Nothing here imports the other packages of the
bookie. Start with `collection_guard`.
"""
