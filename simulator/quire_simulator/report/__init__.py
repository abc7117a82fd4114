"""Reports of a run for people: traces, diagrams and smaller plans that fail alike."""
