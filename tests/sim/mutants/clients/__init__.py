"""Defects of clients."""
