"""Explanations for people: what is missing, why, and what to type.

`explain` examines one ledger, `status` the marks of all ledgers, and `at_risk` counts the ledgers
that lost bookies affect. This package imports every other part of `replication`; none of them
imports it.
"""
