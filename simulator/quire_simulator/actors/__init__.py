"""The clients and operators of a run."""
