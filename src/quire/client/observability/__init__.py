"""Reports of a client about itself: log events, metrics and spans."""
