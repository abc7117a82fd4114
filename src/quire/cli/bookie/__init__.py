"""The commands `quire bookie ...`.

`start` runs a bookie. `init` creates one or deletes everything that it stores, `moves` empties one,
and `cookie` repairs the cookies that tie its directories to the cluster. `disk`, `check`, `replace`
and `space` work on its files. `identity` has the code that several of them share.
"""
