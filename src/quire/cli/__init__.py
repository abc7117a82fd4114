"""The command line: `quire` and all its commands.

`main` has the tables of commands. A command's module is imported when the command is called, and
imports other packages inside functions, so that `quire --help` stays quick. The folders are named
after the commands: `quire ledger read` is in `ledger/`. `servers/` has the commands that run in the
foreground until they are stopped, `common/` the code that several commands share, and `apache/` the
translation of Apache's configuration keys. Commands may import every package; no package imports
this one.
"""
