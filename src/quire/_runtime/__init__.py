"""Helpers of every room: time, tasks, retries, metrics, units, and how this process uses memory
and processors.

Imports nothing else of Quire but `errors`.
"""
