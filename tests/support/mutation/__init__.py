"""Mutation testing: one small random change of the code, and whether anything notices.

`scripts/mutants-sample` is the command, and docs/internals/mutation-testing.md explains the method.
The operators come from Cosmic Ray. To read the folder, begin with `sites` (what can be changed),
`rules` (what is left out) and `rooms` (which tests and workloads have to notice). Then read `tree`
(copies of the source tree), `baseline` (which test executes which line), `unit_stage` and
`simulator_stage` (one mutant against tests and seeds), and `session` (the state on disk).
`sampling` puts them together, and `report` shows the result. `pytest_plugin` and `seeds_process`
run in the processes that import the copies.
"""
