"""Commands that run servers in the foreground: a local cluster, HTTP, ZooKeeper, autorecovery.

`quire bookie start` is with the other commands about bookies.
"""
