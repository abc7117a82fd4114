"""Connections: framing of byte chunks, channels to bookies, the seam to the network."""
