"""Faults of a bookie's disks and directories."""
