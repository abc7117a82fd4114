"""Streams that Java's DistributedLog and Quire write and read in turn."""
