"""The configuration of a process: every key, and the layers that give it a value.

`fields` finds the keys: they are the fields of the dataclasses in `quire.config` and of
autorecovery's settings. `values` converts the text of a file, a variable or an option to the value
of a key. `layers` merges the sources, and `load` is the public `quire.load_config`.
"""
