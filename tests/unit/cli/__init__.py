"""Unit tests of `quire.cli`."""
