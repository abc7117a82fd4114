"""The handlers of all routes.

`bookie` and `cluster` have the routes of Apache's HTTP server, `quire_api` has Quire's own under
`/api/v1/quire`, `dashboard` has those that only the pages use, `contents` lists objects, datasets
and state machines, `payloads` returns entries and records, and `jobs` runs long jobs.
"""
