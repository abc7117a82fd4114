"""What a client reports about itself: log events, metrics and spans."""
