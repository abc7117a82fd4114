"""The command `quire shell`: verbs and flags of Apache's BookieShell.

Read `verbs` first: the table of verbs, with the function of each and its flags. `shell` is the
command, `session` what stands before the verb and Apache's way to write; the others have the
functions, by what they are about.
"""
