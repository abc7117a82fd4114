"""The simulated machine: its loop, disk, network, workers, and power loss."""
