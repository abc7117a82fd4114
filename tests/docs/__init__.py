"""The documentation: its blocks run, its links lead somewhere."""
