"""Marks and locks of the under-replication tree in the metadata store, in Apache BookKeeper's
layout.

Start with `marks`.
"""
