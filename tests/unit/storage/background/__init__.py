"""Compaction, deletion, the scrub, and the repair of damage."""
