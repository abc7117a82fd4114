"""The plan of a run: workloads and faults as data, determined by the seed."""
