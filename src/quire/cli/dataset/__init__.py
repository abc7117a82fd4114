"""The commands `quire dataset ...`: `show` has those that only read, `manage` those that delete."""
