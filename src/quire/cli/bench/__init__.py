"""The commands `quire bench ...`.

`bench` declares the commands and prints results; `core`, `tail`, `stream` and `rereplicate`
measure.
"""
