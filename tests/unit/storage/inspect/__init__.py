"""Inspection of the directories of a stopped bookie."""
