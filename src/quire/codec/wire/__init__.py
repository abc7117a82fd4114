"""The frames and messages that clients and bookies exchange, in protocol v2 and protocol v3.

Start with `v2`.
"""
