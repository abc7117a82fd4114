"""Readers of a stream: positions, records, Arrow columns, statistics and subscriptions.

Start with `reader`. `segment_list` follows the list of segments, `positions` finds where to begin,
`ahead` reads small ledgers ahead,
`records` has the types that readers receive, and `arrow` turns records into Arrow columns. `peek`
is for people who look at records, and changes nothing.
"""
