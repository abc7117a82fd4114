"""Streams as DataFrames and as streaming queries, in both directions.

Read `source`, `query`, `reader`, then `sink`.
"""
