"""Helpers for tests of a store, mostly on a simulated disk."""
