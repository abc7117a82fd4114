"""The HTTP server: route table, authentication, errors and limits.

Start with `server`.
"""
