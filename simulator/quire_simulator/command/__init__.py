"""The command `python -m quire_simulator`. Start with `simulate`."""
