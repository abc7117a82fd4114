"""The read path: find where entries are, read them, check them, and keep what will be read again.

Read `reader` (what the system has cached, on the event loop), then `cold_reads` (what has to wait
for the device). Imports `segment`.
"""
