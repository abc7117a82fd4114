"""Connections: framing of byte chunks, channels to bookies, TLS, and the interface to the network.

Read `link`, then `channel` (protocol v2) and `control` (protocol v3). The simulator replaces
`network`. This package may import `codec`.
"""
