"""Helpers for tests of metadata stores."""
