"""Batches that several processes publish to one stream."""
