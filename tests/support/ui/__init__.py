"""Helpers for tests of the dashboard."""
