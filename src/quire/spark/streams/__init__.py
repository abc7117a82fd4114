"""Streams as DataFrames and as streaming queries, in both directions.

Reading: Spark calls `source`, `query` is the driver's side of a streaming query, `view` is what it
knows of one stream, `plan` divides streams into tasks, and `reader` does the work of tasks.
Writing: Spark calls `writer`, and `sink` does the work of tasks and driver. A micro-batch becomes
visible in one transaction, `StreamMetadata.publish` in `quire.streams.namespace.stream_metadata`,
which `quire.streams.publish.publishing.publish` calls.
"""
