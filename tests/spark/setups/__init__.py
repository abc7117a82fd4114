"""Spark in various setups: examples, notebooks, pages, other processes, earlier versions."""
