"""Unit tests of `quire.metadata`."""
