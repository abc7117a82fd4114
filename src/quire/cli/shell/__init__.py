"""The command `quire shell`, which has the commands and flags of Apache's BookieShell.

Read `verbs` first: the table of commands, called verbs here, with the function and the flags of
each. `shell` is the command itself, and `session` has the options before the verb and Apache's
output formats. The other modules have the functions of the verbs, grouped by subject.
"""
