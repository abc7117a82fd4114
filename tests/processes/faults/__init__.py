"""Real processes that are killed, cut off, damaged, filled or attacked."""
