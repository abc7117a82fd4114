"""The segments of the log: their index in memory, their footers on disk, and the catalogue of all.

Read `batch` and `segment` first, then `catalogue` and `footer`. This folder imports nothing else of
storage except `interfaces`.
"""
