"""The driver that keeps the metadata of a cluster in ZooKeeper, in Apache BookKeeper's layout.

Start with `store`.
"""
