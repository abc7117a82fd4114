"""Observations that are repeated in the background while somebody looks at them.

Start with `observations`. `rates` reads the metrics of bookies, and `reachability` asks whether the
metadata store answers.
"""
