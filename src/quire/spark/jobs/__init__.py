"""Jobs on Spark, as functions. The command `quire pipeline` runs the same jobs.

    from quire.spark.jobs import ClusterOptions, offload
    cluster = ClusterOptions("zk+hierarchical://zk:2181/ledgers")
    result = offload(spark, cluster, "/shop", "orders", "/archive")

`docs/guides/spark/pipelines.md` is the guide, and `docs/reference/pipelines.md` lists the options.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from quire._runtime.names.former_names import former_names

if TYPE_CHECKING:
    from quire.spark.jobs.audit import audit
    from quire.spark.jobs.compact import compact, preview_compact
    from quire.spark.jobs.history import history
    from quire.spark.jobs.ingest import follow, ingest
    from quire.spark.jobs.offload import offload, preview_offload
    from quire.spark.jobs.recover import recover
    from quire.spark.jobs.replicate import replicate
    from quire.spark.jobs.replicate_preview import preview_replicate
    from quire.spark.jobs.tasks import ClusterOptions, ProgressCallback, silent

_WHERE = {
    "audit": "audit",
    "compact": "compact",
    "follow": "ingest",
    "history": "history",
    "ingest": "ingest",
    "offload": "offload",
    "preview_compact": "compact",
    "preview_offload": "offload",
    "preview_replicate": "replicate_preview",
    "recover": "recover",
    "replicate": "replicate",
    "ClusterOptions": "tasks",
    "ProgressCallback": "tasks",
    "silent": "tasks",
}
"""The module of each name, which is imported when the name is used."""

__all__ = [
    "ClusterOptions",
    "ProgressCallback",
    "audit",
    "compact",
    "follow",
    "history",
    "ingest",
    "offload",
    "preview_compact",
    "preview_offload",
    "preview_replicate",
    "recover",
    "replicate",
    "silent",
]


class _Jobs(ModuleType):
    """A package whose attributes are always the jobs, and never the submodules of the same names.

    Importing a submodule sets it as an attribute of its package, and most jobs have the name of
    their module.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _WHERE.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


def _late(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


__getattr__ = former_names(__name__, {"Progress": "ProgressCallback"}, otherwise=_late)

sys.modules[__name__].__class__ = _Jobs
