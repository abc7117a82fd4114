"""Unit tests of `quire.storage`."""
