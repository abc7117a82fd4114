"""Operations that move replicas between bookies: recover, decommission and rebalance.

Start with `recover`, which the other two build on. `preflight` finds out whether a job can succeed
before it changes anything, and `remaining` says what it did not do. `rebalance_plan` decides which
replicas to move, without I/O. This package imports `marks`, `repair`, and the defaults of
`autorecovery`.
"""
