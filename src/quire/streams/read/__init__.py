"""Readers of a stream: positions, records, Arrow columns, statistics and subscriptions.

Start with `reader`. `segment_list` follows the list of segments, `positions` finds where to begin,
`records` has what readers are given, and `arrow` makes columns of it.
"""
