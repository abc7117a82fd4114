"""The parts of `bench/compare.py`: two clusters, the rows, how one is measured, and the report."""
