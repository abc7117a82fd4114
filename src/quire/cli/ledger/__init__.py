"""The commands `quire ledger ...`: `write`, `read`, and `manage` for all other commands."""
