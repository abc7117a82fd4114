"""What must always be true of a ledger, and the checks at the end of a run."""
