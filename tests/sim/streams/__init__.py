"""Streams, topics and objects in simulated clusters."""
