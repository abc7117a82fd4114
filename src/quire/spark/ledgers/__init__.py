"""Ledgers as DataFrames: `reader` and `writer`, and `plan`, which cuts ledgers into tasks."""
