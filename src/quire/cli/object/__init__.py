"""The commands `quire object ...`: `transfer` has `put` and `get`, `manage` all others."""
