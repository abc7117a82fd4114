"""The read path: find where entries are, read them, check them, and keep what will be read again.

Start with `reader`.
"""
