"""Helpers for tests of Spark pipelines."""
