"""The commands `quire stream ...`."""
