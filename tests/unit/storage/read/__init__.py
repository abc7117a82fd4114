"""Reads of entries: which copies are served, how they are fetched, and what they may delay."""
