"""Publishing a batch of records exactly once, for writers that work in many processes.

Start with `publishing`.
"""
