"""The jobs of `quire pipeline` on real clusters."""
