"""The commands `quire pipeline ...`, each of which runs one job of `quire.spark.jobs`.

Read `job` first: it shows what a command looks like, and runs the job in a Spark session.
"""
