"""A driver that offloads a stream and kills itself meanwhile: `python offload_driver.py JSON`."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from quire.spark import local_session
from quire.spark.jobs import ClusterOptions, offload
from quire.spark.jobs.archive.manifest import OffloadClaim


def main(given: dict[str, Any]) -> None:
    commit, calls = OffloadClaim.commit, []

    def killed(self: OffloadClaim, manifest: Any) -> None:
        calls.append(1)
        last = len(calls) == 2  # The first call repeats what exists.
        if not last or given["step"] == "committed":
            commit(self, manifest)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    OffloadClaim.commit = killed  # type: ignore[method-assign]
    spark = local_session(
        "offload",
        settings={"spark.local.dir": given["scratch"], "spark.sql.warehouse.dir": given["scratch"]},
    )
    result = offload(
        spark, ClusterOptions(given["uri"]), given["namespace"], given["stream"],
        given["directory"], truncate=True, turn_bytes=given["turn_bytes"], wait_s=60.0,
    )  # fmt: skip
    print(f"not killed: {result.as_json()}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
