"""Values that several routes and the command line show: clusters, bookies, ledgers and streams.

Start with `cluster_view`. `problems` describes in sentences what is wrong and what to do.
"""
