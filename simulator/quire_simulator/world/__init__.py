"""A simulated cluster (`world`), and the state that all clients of a run share (`stage`)."""
