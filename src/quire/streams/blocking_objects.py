"""Deprecated: use `client.objects` of a `quire.blocking` client."""

from quire._runtime.names.former_names import moved

__getattr__, __dir__ = moved(
    __name__,
    {
        "BlockingObjects": "quire.blocking.former_names:objects",
        "BlockingObjectReader": "quire.blocking:ObjectReader",
        "ReadableFile": "quire.blocking.handles:ReadableFile",
    },
    "client.objects of a quire.blocking client",
)
