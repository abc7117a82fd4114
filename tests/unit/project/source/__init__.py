"""Rules for the source: imports, folders, maps, errors, dependencies."""
