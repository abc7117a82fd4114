"""Which stream, object or dataset a ledger belongs to."""
