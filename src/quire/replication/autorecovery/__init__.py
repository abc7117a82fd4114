"""Autorecovery: the auditor that finds ledgers with missing replicas, and the workers that repair
them.

Start with `autorecovery`.
"""
