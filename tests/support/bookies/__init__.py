"""Helpers for tests of clients and bookies in one process."""
