"""Unit tests of `quire.http`."""
