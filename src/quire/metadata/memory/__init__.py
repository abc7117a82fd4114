"""The driver that keeps the metadata of a cluster in one process, for tests and for the simulator.

Start with `store`.
"""
