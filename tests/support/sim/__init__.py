"""Helpers for runs of the simulator."""
