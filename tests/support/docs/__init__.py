"""Helpers for tests of the documents."""
