"""The start of a store: scans, the index cache, losses, and later versions."""
