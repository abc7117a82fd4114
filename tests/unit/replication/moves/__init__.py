"""Jobs of operators that copy ledgers."""
