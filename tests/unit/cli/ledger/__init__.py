"""Commands about single ledgers."""
