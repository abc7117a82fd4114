"""Unit tests of `quire.net`."""
