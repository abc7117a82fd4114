"""Deprecated: the names of `quire.blocking` at their former place."""

from quire._runtime.names.former_names import moved

__getattr__, __dir__ = moved(
    __name__,
    {
        name: f"quire.blocking:{name}"
        for name in ("CallerIdWriter", "Client", "LedgerReader", "LedgerWriter", "connect")
    },
    "quire.blocking",
)
