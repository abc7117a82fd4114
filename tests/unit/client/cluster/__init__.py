"""What a client knows of bookies: connections, health, addresses, placement."""
