"""Helpers for tests of a store on a simulated disk."""
