"""The directories of a bookie: identity, losses, rollbacks, later versions."""
