"""The translation of Apache's `bk_server.conf` to Quire's configuration.

Read `bk_server.toml` first: it is the table of all keys. `conf` reads a file and applies the table,
and `rules` has functions for the keys that need more than a table row. The command is
`quire.cli.bookie.conf`.
"""
