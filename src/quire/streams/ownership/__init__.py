"""Which streams, objects and datasets own which ledgers, and which ledgers have no owner.

Start with `named_ledgers`.
"""
