"""Apache's `bk_server.conf` as keys of Quire's configuration: a table, and what applies it.

Read `bk_server.toml` first: it says what becomes of each key. `conf` reads a file and applies the
table, `rules` has the keys that need thought. The command is `quire.cli.bookie.conf`.
"""
