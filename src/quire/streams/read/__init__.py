"""Readers of a stream: positions, records, Arrow columns and subscriptions.

Start with `reader`.
"""
