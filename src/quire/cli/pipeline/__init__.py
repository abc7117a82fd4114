"""The commands `quire pipeline ...`, each of which runs one job of `quire.spark.jobs`.

Read `job` first: it says what a command looks like, and runs the job in a session of Spark.
"""
