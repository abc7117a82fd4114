"""The handlers of all routes.

`bookie` and `cluster` have the routes of Apache's HTTP server, and `quire_api` has most of Quire's
own under `/api/v1/quire`. `dashboard` has those that only the pages use, `bookie_pages` those about
single bookies, and `configuration` those about settings. `contents` lists objects, datasets and
state machines, `payloads` returns entries and records, and `series` values over time. `jobs` runs
long jobs.
"""
