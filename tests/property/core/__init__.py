"""The rules of appends, ranges and placement."""
