"""Replicated state machines on streams, and a dictionary made of one.

Start with `state_machine`. `snapshot_info` says what a snapshot stores about itself.
"""
