"""The HTTP admin API and /metrics: Apache BookKeeper's routes, and ours. Needs the extra `http`
(aiohttp) in `server` alone."""
