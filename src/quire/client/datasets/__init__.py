"""Datasets: named sets of ledgers that are published in one compare-and-swap."""
