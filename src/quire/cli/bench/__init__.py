"""The commands `quire bench ...`.

`bench` declares them and prints results; `core`, `tail`, `stream` and `rereplicate` measure.
"""
