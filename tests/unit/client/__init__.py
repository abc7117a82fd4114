"""Unit tests of `quire.client`."""
