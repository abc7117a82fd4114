"""The calls without `await`, which are generated."""
