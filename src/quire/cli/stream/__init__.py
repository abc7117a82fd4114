"""The commands `quire stream ...` and `quire namespace ...`.

`write` appends records and `read` prints them; `show` shows streams, `explain` says what is wrong
with them, `manage` changes them, and `namespace` does both for namespaces. `options` has the code
that they share.
"""
