"""The simulator as a tool: its plans, knobs, invariants, traces, mutants, and measurements."""
