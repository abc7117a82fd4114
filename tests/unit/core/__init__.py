"""Unit tests of `quire.core`."""
