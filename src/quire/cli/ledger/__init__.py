"""The commands `quire ledger ...`."""
