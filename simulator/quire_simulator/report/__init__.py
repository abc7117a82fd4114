"""Reports of a run for people: the result, the readable trace as text or diagram, and smaller plans
that fail alike.

Start with `result` and `steps`.
"""
