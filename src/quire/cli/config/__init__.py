"""The commands `quire config ...`."""
