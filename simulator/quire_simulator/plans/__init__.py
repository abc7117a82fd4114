"""The plan of a run: workloads and faults as data, made from the seed."""
