"""Bookies that are killed at every step, and power that fails: what is on disk afterwards."""
