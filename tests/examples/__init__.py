"""Tests of the programs in examples/, as processes on a real cluster."""
