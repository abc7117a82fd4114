"""Helpers for tests of the HTTP server and its reports."""
