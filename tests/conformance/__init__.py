"""Requirements for every metadata store, and what only one of them promises."""
