"""Operations that move replicas from bookie to bookie: recover, decommission and rebalance.

Start with `recover`, which the other two build on. `rebalance_plan` decides which replicas to move,
without I/O. Imports `marks`, `repair`, and the defaults of `autorecovery`.
"""
