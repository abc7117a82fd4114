"""The commands `quire cluster ...`."""
