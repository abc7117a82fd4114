"""Helpers for tests against Apache BookKeeper."""
