"""Defects of streams, objects and Spark's commits."""
