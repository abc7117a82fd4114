"""Conversion between bytes and frozen values.

This package does no I/O. Of Quire's other modules it imports only `errors`.
"""
