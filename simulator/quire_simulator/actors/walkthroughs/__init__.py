"""Walkthroughs: calls of one client in the quiet cluster, whose answers are all known before.

Each is a script that uses one part of the public API at the end of a run, when nothing is broken.
It compares everything that it is told with what it has done: results, counters, metrics, errors,
and what the calls cost. `walk` is the framework, and `draw` chooses the scripts of a run.
"""
