"""The command line.

Each command has a module of its own, which is imported when the command is called. Start with
`main`.
"""
