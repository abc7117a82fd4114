"""Walkthroughs of one bookie by clients that speak the wire protocols themselves.

Nobody else uses the bookie. So it is known exactly what it has, what it must answer to each
request, and what it must have counted afterwards. `driven_bookie` is the bookie, `raw_client` a
connection, and `known_bookie` what the bookie must have. `requests` has one request of each kind
with its answer. The other files are scripts: `requests_walk` sends requests of all kinds,
`connections_walk` reaches the limits of connections, and `answers_walk` those of answers.
"""
