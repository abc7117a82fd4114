"""Datasets: named sets of ledgers that are published in one compare-and-swap.

Start with `datasets`, which has the calls of users. `heads` reads and swaps what the metadata store
has, in the format of `format`. `unpublished` finds and deletes the ledgers that no dataset names.
`schema` and `rows` are for typed rows, and `as_json` is for commands and pages.
"""
