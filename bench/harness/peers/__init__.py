"""Quire's streams beside Kafka and NATS JetStream.

Read `systems` first: how each system is built, started and asked. `running` runs a client and reads
its results. `powercut` gives servers disks of their own and cuts their power. `rows` says what is
measured, and `table` writes the results.
"""
