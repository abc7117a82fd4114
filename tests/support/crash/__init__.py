"""Helpers for sweeps over the states that a crash can leave on a disk."""
