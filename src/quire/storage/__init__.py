"""A bookie's disk: log segments, index, state records, garbage. The only room that touches `os`,
and there only `disk.py` does."""
