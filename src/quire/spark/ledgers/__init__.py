"""Ledgers as DataFrames, in both directions."""
