"""Real bookies and HTTP servers with real clients, without planned faults."""
