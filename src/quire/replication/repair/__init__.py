"""Copying missing or damaged entries of one ledger, and naming the copies in its metadata.

Read `bookie_removal`, then `fragment` and `repair_findings`.
"""
