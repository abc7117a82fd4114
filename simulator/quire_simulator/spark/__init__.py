"""Streaming queries of Spark without a JVM: simulated drivers and tasks around Quire's own code.

It may import `streams/` and `world/`. Read `checkpoint.py` first, then `driver.py` and `judge.py`.
"""
