"""Writers of ledgers."""
