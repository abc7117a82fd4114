"""Helpers for every package: time, tasks, retries, metrics, units, and the memory and processors of
this process.

It imports nothing else of Quire but `errors`.
"""
