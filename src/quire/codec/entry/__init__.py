"""The stored and sent bytes of entries, with their digest, and runs of entries.

A run has no object for each entry. Start with `entry`.
"""
