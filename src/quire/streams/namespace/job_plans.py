"""The nodes that permit jobs to publish to a stream: how to find and delete them.

`quire.streams.publish.plans` explains plans. A rename ends the plans of jobs. Their transactions
name the former life of the stream, so the jobs could publish nothing after the rename anyway.
"""

from __future__ import annotations

import re

from quire.errors import NoSuchKeyError
from quire.metadata.tree import Delete, Tree

PLANS = "quire-plans"
"""The node below the root of a stream that holds its plans."""
_OF_JOB = re.compile(r"j-([0-9a-f]{12})-.+")


def is_job_plan(path: str) -> bool:
    """Return whether this is the path of the plan of a job."""
    directory, _, name = path.rpartition("/")
    return directory.endswith(f"/{PLANS}") and _OF_JOB.fullmatch(name) is not None


def job_plan_time_ms(path: str) -> int:
    """Return when the plan of a job was made, in milliseconds since 1970."""
    found = _OF_JOB.fullmatch(path.rpartition("/")[2])
    assert found is not None
    return int(found[1], 16)


async def job_plans(tree: Tree, root: str) -> list[str]:
    """Return the paths of the plans of jobs for the stream with this root, the oldest first."""
    directory = f"{root}/{PLANS}"
    try:
        names = await tree.children(directory)
    except NoSuchKeyError:
        return []
    return [f"{directory}/{name}" for name in sorted(names) if _OF_JOB.fullmatch(name)]


async def end_job_plans(tree: Tree, paths: list[str]) -> None:
    """Delete these plans. Their jobs can publish nothing after this call."""
    for path in paths:
        try:
            await tree.commit(Delete(path))
        except NoSuchKeyError:
            pass  # the job has published, or was given up
