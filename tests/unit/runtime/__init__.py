"""Unit tests of `quire._runtime`."""
