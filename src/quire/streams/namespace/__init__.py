"""Namespaces, and the metadata of the streams in them.

Start with `namespace`, which applications use. `binding` names the cluster of a namespace.
`stream_metadata` reads and changes the nodes of one stream. `known_segments` and `known_sizes`
remember them for repeated reads. `stream_life` distinguishes a stream from an earlier one with the
same name, and `topic_nodes` keeps the names of streams and topics apart. `settings` has the
settings that streams inherit, and `stored_settings` reads and changes them in the metadata store.
`truncation` and `removal` free ledgers, and `tree_search` finds namespaces.
"""
