"""Unit tests of `quire.codec`."""
