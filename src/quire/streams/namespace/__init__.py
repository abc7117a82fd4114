"""Namespaces, and the metadata of the streams in them.

Start with `namespace`, which applications use. `binding` ties it to its cluster. `stream_metadata`
reads and changes the nodes of one stream. `known_segments` and `known_sizes` remember them for
those who look again and again. `stream_life` distinguishes a stream from an earlier one with the
same name, and `topic_nodes` keeps the names of streams and topics apart. `settings` has the
settings that streams inherit, and `stored_settings` their nodes. `truncation` and `removal` free
ledgers, and `tree_search` finds namespaces.
"""
