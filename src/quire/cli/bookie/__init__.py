"""The commands `quire bookie ...`.

`start` runs a bookie. `init` makes one or destroys what it has stored, `moves` empties one, and
`cookie` repairs what ties its directories to the cluster. `disk`, `check`, `replace` and `space`
work on its files. `identity` has what several of them share.
"""
