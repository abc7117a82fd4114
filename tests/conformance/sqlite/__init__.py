"""SQLite alone."""
