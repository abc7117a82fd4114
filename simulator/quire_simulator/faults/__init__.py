"""The faults of a run: the code that injects each kind.

Start with `nemesis`, which carries out the schedule.
"""
