"""The start of a store: read the log, tell a torn tail from damage, and build the index.

Start with `recovery`.
"""
