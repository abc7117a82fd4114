"""Ledgers, datasets and metadata as tables of Spark."""
