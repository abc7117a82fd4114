"""The connections of clients and the protocols that they speak.

An add goes through `connection`, `v2` (or `v3`) and `add_batcher` to the store, and its answer
comes back through `v2` and `connection`. A read goes through `connection`, `v2` and `service`.
`service` is the state that all connections share. It uses `loading_store` while the log is being
loaded, and `read_failures` logs for it. `answer_budget`, `connection_limits`, `long_polls` and
`security` limit what clients may use. Read `connection`, then `v2`, `add_batcher` and `service`.
Nothing here imports the other packages of the bookie.
"""
