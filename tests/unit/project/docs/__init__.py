"""The documentation agrees with the source and with itself."""
