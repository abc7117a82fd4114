"""Helpers for tests, in a folder for each room. Tests import from here, never from each other."""
