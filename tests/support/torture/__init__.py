"""A torture test: a cluster of real processes under load and faults, which is checked at the end.

    python -m tests.support.torture MINUTES [--seed N] [--bookies N] [--keep DIRECTORY]

`make torture MINUTES=10` runs it. Read the files in this order: `journal` (what the clients were
promised), `clients` (the load), `place` (machines, disks and servers), `nemesis` (the faults),
`judge` (what must be true at the end), `__main__` (a whole run, and its figures).
"""
