"""A cluster of many bookies on the simulator's clock, for `bench/scale.py`.

Real: Quire's ZooKeeper driver, client, placement, auditor, workers, marks, locks and election.
Modelled: the ZooKeeper server (`zookeeper`), and the bookies' connections, disks and processors
(`bookies`). `cluster` puts both together.
"""
