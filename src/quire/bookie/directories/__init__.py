"""The data directories of a bookie.

This package checks which bookie a directory belongs to, and whether it is new, lost, replaced or
older than it should be. `identity` checks a single directory, `cookie_directories` checks several,
and `rollback` checks whether one went back in time. `lost_directory` and `replacement` replace or
remove a directory for the commands. `opening` creates the store. Start with `identity`.
"""
