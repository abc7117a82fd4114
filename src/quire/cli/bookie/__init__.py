"""The commands `quire bookie ...`."""
