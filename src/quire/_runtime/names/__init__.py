"""Helpers for names: lazy imports, deprecated names, suggestions, and names in commands.

Start with `lazy`; then read `former_names`, which warns with the help of `caller_warnings`, and
`suggest`. `in_commands` writes names of streams and bookies in commands. `extras` has the hint for
installing an optional extra of the package. `process_numbers` has the numbers in the names of
locks.
"""
