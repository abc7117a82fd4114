"""Simulated bookies whose disks, directories and answers have faults."""
