"""Commands and servers as real processes, and their faults."""
