"""Commands about streams."""
