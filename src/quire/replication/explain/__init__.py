"""Explanations for people: what is missing, why, and what to type.

`explain` looks at one ledger, `status` at the marks of all ledgers, and `at_risk` counts what lost
bookies mean. Imports every other part of the room; none of them imports this one.
"""
