"""Reports of a run: the result, the readable trace as text or diagram, and smaller failing plans.

Start with `result` and `steps`.
"""
