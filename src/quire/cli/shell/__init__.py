"""The command `quire shell`: verbs and flags of Apache's BookieShell.

Start with `shell`.
"""
