"""Streams in Spark without a JVM."""
