"""The clients and operators of a run: tasks that act as the plan says and record what they did.

Start with `actors`, which begins them all.
"""
