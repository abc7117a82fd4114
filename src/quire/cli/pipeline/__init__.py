"""The commands `quire pipeline ...`.

Start with `common`.
"""
