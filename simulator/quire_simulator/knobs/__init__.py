"""Knobs: limits, sizes, intervals and thresholds of Quire that a run draws from its seed.

A run that uses a window of 3 entries crosses the boundary of a window all the time; a run with the
default of 256 never does. So each run draws some limits between the smallest legal value and the
default. `knob` has what a knob is, `table` has all of them, from one file for each room, and
`exclusions` has every other named number with the reason why it is not drawn. `drawing` draws the
values for a plan, and `applied` sets them for a run and puts the defaults back.

This folder may import the rooms of `quire` whose limits it sets, and nothing else of the simulator.
Read `knob`, then `drawing`.
"""
