"""Copying missing or damaged entries of one ledger, and naming the copies in its metadata.

`bookie_removal` takes lost bookies out of a ledger, `repair_findings` writes back what an audit
found to be missing. Both use `fragment`, which copies segments and names the copies,
`replica_reader` for one replica, and `replica_source` for whichever replica is good. Imports
`marks`.
"""
