"""The command `quire bench`.

Start with `bench`.
"""
