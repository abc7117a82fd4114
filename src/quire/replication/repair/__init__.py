"""Copying missing or damaged entries of one ledger, and naming the copies in its metadata.

Start with `ledger`.
"""
