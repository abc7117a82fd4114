"""The HTTP admin API and `/metrics`: Apache BookKeeper's routes, and Quire's own.

`server` checks requests and answers them, `routes` says what is answered, `views` makes the values
that several routes and the command line show, and `watch` observes the cluster in the background.
Imports go from `server/run` to `routes`, `views` and `watch`. The extra `http` (aiohttp) is needed
in `server/server` and `server/fetch` alone.
"""
