"""The server: one process, one data directory, protocol v2, a chunk at a time."""
