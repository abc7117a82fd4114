"""Streams in a run: their clients and their invariants."""
