"""Unit tests of `quire.replication`."""
