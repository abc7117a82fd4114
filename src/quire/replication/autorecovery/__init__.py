"""Autorecovery: an auditor marks ledgers with missing replicas, and workers repair them.

Start with `autorecovery`, then read `election`, `auditor` with `lost_bookies`, and `worker`. This
package imports `marks` and `repair`.
"""
