"""The driver that keeps the metadata of a cluster in ZooKeeper, in Apache BookKeeper's layout.

`store` is the driver. It combines `ledgers`, `bookies`, `values` and `tree`. `root`
repeats their operations after a lost connection. Only `kazoo_adapter` and `kazoo_handler` import
kazoo. Start with `store`.
"""
