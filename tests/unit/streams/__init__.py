"""Unit tests of `quire.streams`."""
