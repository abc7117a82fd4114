"""Observations that are repeated in the background while somebody looks at them.

Start with `background`.
"""
