"""What the server observes over time."""
