"""Entries: the bytes that are stored and sent, with their digest, and runs of them without an
object for each.

Start with `entry`.
"""
