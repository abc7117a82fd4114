"""Readers and followers of ledgers."""
