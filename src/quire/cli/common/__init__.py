"""Parts that several commands share.

Read `groups` first: groups of commands that are imported lazily, and what becomes of errors.
`options` declares options, `tls` those of connections, and `moves` those of jobs that copy
replicas. `configuration` merges options with the environment and the file. `input`, `output` and
`progress` are about standard input, output and the terminal.
"""
