"""Replicated state machines on streams, and a dictionary made of one.

Start with `state_machine`.
"""
