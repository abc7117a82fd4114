"""The repair of single ledgers."""
