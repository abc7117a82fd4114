"""Connections: framing of byte chunks, channels to bookies, TLS, the seam to the network.

Read `link`, then `channel` (protocol v2) and `control` (protocol v3). A simulation replaces
`network`. This room may import `codec`.
"""
