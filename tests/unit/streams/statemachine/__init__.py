"""Replicated state machines."""
