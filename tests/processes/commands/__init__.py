"""Commands of `quire`, typed as processes against real clusters."""
