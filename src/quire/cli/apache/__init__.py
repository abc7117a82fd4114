"""The command `quire bookie conf`: Apache's `bk_server.conf` as keys of Quire's configuration.

Start with `conf`.
"""
