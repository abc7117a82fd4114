"""The command line: `quire` and all its commands.

`main` has the tables of commands. A command is imported when it is called, so that `quire --help`
stays quick: modules import what they need of the other rooms inside functions. The folders are
named as the commands: `quire ledger read` is in `ledger/`. `servers/` has what runs in the
foreground until it is stopped, `common/` what several commands share, and `apache/` the table of
Apache's configuration keys. Commands may import every room; no room imports this one.
"""
