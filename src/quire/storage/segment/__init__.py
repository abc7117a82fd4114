"""One segment of the log: its index in memory, its footer on disk, and the step from one to the
other.

Start with `segment`.
"""
