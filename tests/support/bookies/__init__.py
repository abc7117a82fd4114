"""Helpers for tests of clients against bookies in memory."""
