"""The configuration of a process: every key, and the layers that give it a value.

`fields` finds the keys, which are the fields of the dataclasses of `quire.config` and of
autorecovery. `values` converts what stands in a file, in the environment or in an option. `layers`
merges these; `load` is the public `quire.load_config`.
"""
