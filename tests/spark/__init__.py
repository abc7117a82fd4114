"""Tests of Quire on Spark."""
