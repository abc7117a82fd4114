"""Copies of a stream in another cluster, with the same segments and entries.

Start with `mirror`.
"""
