"""The clients and operators of a run: tasks that follow the plan and record what they did.

Start with `actors`, which starts all of them.
"""
