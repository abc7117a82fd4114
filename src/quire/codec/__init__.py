"""Bytes <-> frozen values. Pure: imports nothing of ours but `errors`, does no I/O."""
