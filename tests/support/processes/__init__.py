"""Helpers for tests with real processes."""
