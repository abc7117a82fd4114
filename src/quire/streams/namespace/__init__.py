"""Namespaces, and the metadata of the streams in them: settings, segments, truncation and removal.

Start with `namespace`.
"""
