"""Repair of one ledger: copying missing or damaged entries, and updating its metadata.

`bookie_removal` replaces lost bookies of a ledger, and `repair_findings` writes back entries that
an audit found to be missing. Both use `fragment`, which copies segments and updates the metadata,
`replica_reader`, which reads one replica, and `replica_source`, which reads any good replica. This
package imports `marks`.
"""
