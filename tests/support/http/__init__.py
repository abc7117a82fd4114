"""Helpers for tests of the HTTP server and what it reports."""
