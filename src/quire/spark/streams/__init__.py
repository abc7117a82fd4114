"""Streams as DataFrames and as streaming queries, in both directions.

Reading: `source` is what Spark calls, `query` the driver's side of a streaming query, `view` what
it knows of one stream, `plan` cuts streams into tasks, and `reader` is what tasks do. Writing:
`writer` is what Spark calls, and `sink` what tasks and the driver do. A micro-batch becomes visible
in one transaction, `StreamMetadata.publish` in `quire.streams.namespace.stream_metadata`, which
`quire.streams.publish.publishing.publish` calls.
"""
