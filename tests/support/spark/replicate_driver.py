"""A program that replicates streams, and is killed at a given step:

python replicate_driver.py '{"source": URI, "target": URI, "namespace": "/a", "scratch": DIR,
                             "kill": "after-publish", "continuous": true}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from quire.spark import local_session
from quire.spark.jobs import ClusterOptions
from quire.spark.jobs.replicate import replicate
from quire.streams.mirror import mirror
from quire.streams.namespace.stream_metadata import StreamMetadata

STEPS: dict[str, tuple[Any, str]] = {
    "publish": (StreamMetadata, "publish"),
    "change": (StreamMetadata, "change"),
    "allocate": (StreamMetadata, "allocate"),
    "claim": (StreamMetadata, "claim"),
    "make": (mirror, "create"),
    "delete": (mirror, "delete_insisting"),
    "copy": (mirror.Mirror, "_copy_sealed"),
    "name": (mirror.Mirror, "_name"),
    "complete": (mirror.Mirror, "_complete"),
}


def kill_at(step: str) -> None:
    """Arrange that this process is killed before or after the first call of a step."""
    when, _, name = step.partition("-")
    owner, attribute = STEPS[name]
    original: Callable[..., Awaitable[Any]] = getattr(owner, attribute)

    async def killed(*arguments: Any, **more: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await original(*arguments, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, attribute, killed)


def main(arguments: dict[str, Any]) -> None:
    scratch = arguments["scratch"]
    spark = local_session(
        "replicate", settings={"spark.local.dir": scratch, "spark.sql.warehouse.dir": scratch}
    )
    if arguments["kill"]:
        kill_at(arguments["kill"])
    replicate(
        spark,
        ClusterOptions(arguments["source"]),
        ClusterOptions(arguments["target"]),
        arguments["namespace"],
        continuous=arguments["continuous"],
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
