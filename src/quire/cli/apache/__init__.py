"""The translation of Apache's `bk_server.conf` to Quire's configuration.

Read `bk_server.toml` first: it is the table of Apache's keys and their meaning for Quire. `keys`
loads the table, `rules` has functions for the keys whose meaning depends on their value, and `conf`
reads a file and applies the table. The command is in `quire.cli.bookie.conf`.
"""
