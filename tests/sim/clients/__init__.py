"""Simulated clients: writers, readers and followers, and the connections below them."""
