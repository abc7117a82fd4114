"""Offloading of closed segments to Parquet, Delta and Iceberg, and reading the history back."""
