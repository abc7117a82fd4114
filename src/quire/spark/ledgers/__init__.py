"""Ledgers as DataFrames: `reader` and `writer`, and `plan`, which divides ledgers into tasks."""
