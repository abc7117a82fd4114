"""Defects of a bookie's store."""
