"""A simulated cluster and the state that all its clients share."""
