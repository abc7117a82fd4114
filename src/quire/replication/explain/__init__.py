"""Explanations for people: what is missing, why, and what to type.

`explain` examines one ledger, `entry` the copies of one entry, `status` the marks of all ledgers,
`at_risk` counts the ledgers that lost bookies affect, and `copies` is about continuous copies of
streams. This package imports `audit`, `autorecovery`, `marks` and `repair`. No other part of
`replication` imports it.
"""
