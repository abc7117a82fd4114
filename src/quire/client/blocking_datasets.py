"""Deprecated: use `client.datasets` of a `quire.blocking` client."""

from quire._runtime.names.former_names import moved

__getattr__, __dir__ = moved(
    __name__,
    {"BlockingDatasets": "quire.blocking.former_names:datasets"},
    "client.datasets of a quire.blocking client",
)
