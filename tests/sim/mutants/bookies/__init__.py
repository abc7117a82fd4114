"""Defects of bookies, and against hostile ones."""
