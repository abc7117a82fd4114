"""Tests of the problems that the dashboard and `quire explain` report."""
