"""Whole clusters in the simulator, and the simulator itself."""
