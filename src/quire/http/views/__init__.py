"""Values that several routes and the command line show: clusters, bookies, streams and their
problems.
"""
