"""The faults of a run: the code that injects each kind."""
