"""The data directories of a bookie: whose they are, and whether one is new, lost, replaced or older
than it should be.

`identity` checks a single directory, `listed` several, and `rollback` whether one went back in
time. `lost` and `replacement` give up a directory for the commands; `opening` makes the store.
Start with `identity`.
"""
