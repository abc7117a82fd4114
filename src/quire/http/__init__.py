"""The HTTP admin API and `/metrics`: Apache BookKeeper's routes, and Quire's own.

`server` checks requests and answers them, `routes` has the handlers, `views` builds the values that
several routes and the command line show, and `watch` observes the cluster in the background.
`static` is the dashboard: `app.js` shows a page of `pages`, which are made of `parts`.
Imports go from `server/run` to `routes`, `views` and `watch`. Only `server/server` and
`server/fetch` need the extra `http` (aiohttp).
"""
