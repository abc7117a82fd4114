"""Partitioned topics: a topic is a group of streams that is written and read as one.

Partition 3 of the topic `clicks` is the stream `clicks/3`. `partitioner` chooses the partition of a
record by its key, and `topic_metadata` has the node that stores the number of partitions. `writer`
and `reader` work on several partitions at once. Start with `topic`, which applications use. This
folder may import the folders of one stream: `namespace` (except `namespace.namespace`), `read` and
`write`.
"""
