"""Namespaces, and the metadata of the streams in them.

Start with `namespace`, which applications use. `stream_metadata` reads and changes the nodes of one
stream, `stream_life` tells a stream from a former one of its name, `settings` has what streams
inherit, `truncation` and `removal` free ledgers, and `walk` finds namespaces.
"""
