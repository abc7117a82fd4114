"""Unit tests of `quire.spark`."""
