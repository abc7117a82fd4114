"""The clients and invariants of streams in a run."""
