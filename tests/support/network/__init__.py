"""Helpers for tests that disturb the network."""
