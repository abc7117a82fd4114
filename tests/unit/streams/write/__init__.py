"""Writing records: the lock of a stream, and successors of dead writers."""
