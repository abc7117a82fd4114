"""The HTTP server: the table of routes, the token, errors and limits.

Start with `api`, which says what a route is. `security` checks the token and the origin of each
request, `server` speaks HTTP, `run` puts a server together for a bookie or for a cluster.
"""
