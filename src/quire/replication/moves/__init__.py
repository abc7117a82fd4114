"""Operations that move replicas from bookie to bookie: decommission, recover and rebalance.

Start with `recover`.
"""
