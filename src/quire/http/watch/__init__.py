"""Observations that are repeated in the background while somebody looks at them.

Read `observations`, then `rates` and `reachability`.
"""
