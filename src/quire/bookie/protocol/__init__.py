"""Connections of clients and the protocols that they speak.

An add goes through `connection`, `v2` (or `v3`) and `add_batcher` to the store, and its answer
comes back through `v2` and `connection`. A read goes through `connection`, `v2` and `service`.
`service` is what all connections share; it asks `loading_store` while the log is being loaded.
`answer_budget`, `connection_limits`, `long_polls` and `security` bound what clients may take. Read
`connection`, then `v2`, `add_batcher` and `service`. Nothing here imports the other rooms of the
bookie.
"""
