"""The read path: locate entries, read them, check them, and cache what will be needed again.

Start with `reader`, which reads what the system has cached, on the event loop. `cold_reads` handles
reads that must wait for the device. This folder imports nothing else of storage except `segment`
and `interfaces`.
"""
