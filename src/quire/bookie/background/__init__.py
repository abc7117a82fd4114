"""Work that a bookie does for the cluster beside serving clients: garbage collection, reports of
damage, orders of operators.
"""
