"""Decisions without I/O: quorums, the add pipeline, recovery, placement. Time and randomness are
passed in."""
