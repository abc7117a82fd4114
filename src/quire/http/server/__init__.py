"""The HTTP server: the table of routes, the token, errors and limits.

Start with `api`, which defines routes and fields. `security` checks the token and the origin of
each request, `server` speaks HTTP, and `run` builds the server of a bookie or of a cluster.
"""
