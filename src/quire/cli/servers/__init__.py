"""Commands that run servers in the foreground: a local cluster, HTTP, ZooKeeper, autorecovery.

`http` also has the options of every server with an HTTP side. A bookie is `quire.cli.bookie.start`.
"""
