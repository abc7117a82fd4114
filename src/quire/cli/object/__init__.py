"""The commands `quire object ...`: `transfer` puts and gets, `manage` has the others."""
