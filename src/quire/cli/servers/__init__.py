"""Commands that run servers in the foreground: a local cluster, HTTP, ZooKeeper, autorecovery.

`http` also has the HTTP options of other servers. A bookie is started by `quire.cli.bookie.start`.
"""
