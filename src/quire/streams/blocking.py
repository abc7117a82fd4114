"""Deprecated: use `quire.blocking`, and `client.namespace` of its client."""

from quire._runtime.names.former_names import moved

__getattr__, __dir__ = moved(
    __name__,
    {
        "Namespace": "quire.blocking.former_names:Namespace",
        **{
            name: f"quire.blocking:{name}"
            for name in ("Producer", "StreamReader", "StreamWriter", "Subscription")
        },
    },
    "quire.blocking, and client.namespace of its client",
)
