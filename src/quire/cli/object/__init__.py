"""The commands `quire object ...`."""
