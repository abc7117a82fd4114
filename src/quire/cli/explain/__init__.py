"""The commands `quire explain ...`."""
