"""The tools of development: benchmarks, mutation testing, releases."""
