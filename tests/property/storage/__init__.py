"""The store of a bookie."""
