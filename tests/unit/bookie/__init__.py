"""Unit tests of `quire.bookie`."""
