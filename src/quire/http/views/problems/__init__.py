"""The problems of a cluster in plain sentences, one file for each kind of thing that goes wrong.

Each problem says what happened, what is at risk, what Quire does about it, and what to type. Start
with `problem` and `cluster`, which collects the problems of all kinds: `lost_data`, `collection`,
`lost_bookies`, `silent_bookies`, `certificates`, `read_only`, `disks`, `damage`, `creation`,
`places` and `autorecovery`. `metadata_store` is about the time when nothing else can be examined.
The functions are pure: they read only their arguments. This folder imports `bookie_list`,
`creatable` and `topology` of the views, and `watch`.
"""
