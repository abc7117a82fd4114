"""Topics: clients that create, write, read, truncate and delete them, and what each must find.

`history` has what is known of each topic, and the invariants. `actors` has the clients and the
judge, which works at the end of a run.
"""
