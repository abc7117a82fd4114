"""The invariants of ledgers and bookies, and the checks at the end of a run.

`history` is what clients recorded, `claims` what bookies claimed to hold, `ledger` the invariants
of one ledger. Start with `checker`, which follows a run.
"""
