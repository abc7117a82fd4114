"""Unit tests of the project itself: import rules, packages, deployment files and benchmarks."""
