"""The commands `quire stream ...` and `quire namespace ...`.

`write` and `read` move records, `show` and `manage` look at streams and change them, and
`namespace` does so for namespaces. `options` has what they share.
"""
