"""The commands `quire namespace ...`."""
