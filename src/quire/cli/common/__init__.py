"""Code that several commands share.

Read `groups` first: it has the groups of lazily imported commands, and turns errors into messages
and exit statuses. `options` declares options, `tls` those of connections, and `moves` those of jobs
that copy replicas. `configuration` merges options with the environment and the configuration file.
`input` reads standard input, `output` writes standard output, and `progress` draws progress bars.
"""
