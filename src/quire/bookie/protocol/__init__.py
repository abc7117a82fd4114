"""Connections of clients and the protocols that they speak.

Read `connection`, then `v2`, `v3` and `add_batcher`.
"""
