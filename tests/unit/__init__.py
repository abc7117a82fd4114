"""One folder for each room of `src/quire`: tests in one process, most of them without sockets."""
