"""The plan of a batch: the permission to publish the batch once, as a node of the stream.

    quire-plans/w-NAME        One node for each writer. A new plan changes its version, and the
                              value is the time of the newest plan.
    quire-plans/j-TIME-ID     One node for each job that is running. The end of the job deletes it.

The transaction that publishes a batch checks the node of its plan. A publication can therefore be
tried again, after what other sinks have published, and can still be ended reliably: an abort, or
the next plan of the same writer, changes the node. No transaction under the former plan succeeds
after that. The deletion of orphans ends old plans, because their ledgers look like orphans until
they are published.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import quote

from quire.errors import (
    KeyExistsError,
    MetadataUnavailableError,
    NoSuchKeyError,
    QuireError,
    VersionConflictError,
    nothing_done,
)
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Tree
from quire.streams.namespace.job_plans import PLANS, end_job_plans, job_plan_time_ms, job_plans
from quire.streams.namespace.stream_life import unique
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.publish.published import BatchKey, check_key_name

OPEN_JOBS_MAX = 1_000
"""The largest number of jobs that may have a plan for one stream at the same time.

Killed jobs leave their plans. The oldest plan is deleted first, and its job cannot publish then.
"""
PLAN_ATTEMPTS = 20
"""The number of attempts to make a plan for a writer.

An attempt fails if another driver of the writer makes one meanwhile.
"""

_OF_WRITER = "w-"
"""The beginning of the name of the plan of a writer."""

logger = logging.getLogger("quire.streams")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The node that permits a batch to be published, at the version that permits it."""

    path: str
    version: int
    of_job: bool
    """Whether the plan is that of a job, which the publication deletes."""

    def used(self) -> Operation:
        """Return the operation for the transaction that publishes the batch."""
        return (Delete if self.of_job else Check)(self.path, self.version)


async def open_plan(metadata: StreamMetadata, key: BatchKey, now_ms: int) -> BatchPlan:
    """Make a plan for a batch, and end the former plan of its writer.

    `now_ms` is the time, by which the plans of jobs are sorted. Raises NoSuchStreamError,
    MetadataUnavailableError, and UsageError if the name of the writer is not valid.
    """
    directory = f"{metadata.paths.root}/{PLANS}"
    tree = metadata.tree
    if not await tree.exists(directory):
        await metadata.make_below(directory)
    if not key.writer:
        await _forget_jobs(metadata)
        path = f"{directory}/j-{now_ms:012x}-{unique(tree)}"
        await metadata.make_below(path)
        return BatchPlan(path, 0, of_job=True)
    made = b"%d" % now_ms
    path = f"{directory}/{_OF_WRITER}{quote(check_key_name(key.writer, 'a writer'), safe='')}"
    for _ in range(PLAN_ATTEMPTS):
        try:
            version = (await tree.read(path)).version
        except NoSuchKeyError:
            try:
                await tree.commit(Create(path, made))
            except KeyExistsError:
                continue  # another driver was faster
            except NoSuchKeyError:
                await metadata.make_below(directory)  # raises if the stream was deleted just now
                continue
            return BatchPlan(path, 0, of_job=False)
        try:
            await tree.commit(Put(path, made, version))
        except (VersionConflictError, NoSuchKeyError):
            continue
        return BatchPlan(path, version + 1, of_job=False)
    raise nothing_done(
        MetadataUnavailableError(
            f"writer {key.writer!r} made no plan for stream {metadata.paths.name}: other drivers "
            f"of the same writer made theirs during each of {PLAN_ATTEMPTS} attempts",
            remedy="Stop the other drivers, or give each query its own writer id",
        )
    )


async def _forget_jobs(metadata: StreamMetadata) -> None:
    """Delete the oldest plans of jobs if there are too many."""
    paths = await job_plans(metadata.tree, metadata.paths.root)
    await end_job_plans(metadata.tree, paths[: max(0, len(paths) - OPEN_JOBS_MAX + 1)])


async def forget_plan(metadata: StreamMetadata, plan: BatchPlan) -> None:
    """Delete the plan of a job that publishes nothing under it.

    The plan of a writer remains for its next batch. An error is only logged, because a plan that is
    left does no harm: the plans of later jobs end it.
    """
    if plan.of_job:
        try:
            await end_job_plans(metadata.tree, [plan.path])
        except QuireError as error:
            logger.info("the plan %s of a job could not be deleted: %s", plan.path, error)


async def close_plan(metadata: StreamMetadata, plan: BatchPlan, life: str) -> None:
    """End a plan. No transaction under it succeeds after this call.

    `life` is the path of the stream's life when the plan was made. If that life has ended, so has
    the plan. Another stream may have the name now, and may have a plan with the same path and
    version. That plan is left alone.

    A later read of the stream's segments sees what was published under the plan. Raises
    MetadataUnavailableError if it is not known whether the plan has ended.
    """
    end = Delete(plan.path, plan.version) if plan.of_job else Put(plan.path, b"", plan.version)
    try:
        await metadata.tree.commit(Check(life, ANY_VERSION), end)
    except (VersionConflictError, NoSuchKeyError):
        await metadata.tree.sync()  # it had ended before, perhaps with a publication just now


async def is_open(metadata: StreamMetadata, plan: BatchPlan) -> bool:
    """Return whether the plan still permits a publication. Raises MetadataError."""
    try:
        return (await metadata.tree.read(plan.path)).version == plan.version
    except NoSuchKeyError:
        return False


async def end_old_plans(tree: Tree, root: str, until_ms: int) -> None:
    """End the plans of a stream that were made until this time, in milliseconds since 1970.

    No transaction under them succeeds after this call. A later read of the stream's segments sees
    what was published under them. A writer's plan whose time is unknown is ended too. `root` is the
    root of the stream. Raises MetadataUnavailableError.
    """
    jobs = await job_plans(tree, root)
    await end_job_plans(tree, [path for path in jobs if job_plan_time_ms(path) <= until_ms])
    directory = f"{root}/{PLANS}"
    try:
        names = await tree.children(directory)
    except NoSuchKeyError:
        return
    for name in names:
        path = f"{directory}/{name}"
        if not name.startswith(_OF_WRITER):
            continue
        try:
            found = await tree.read(path)
            if not found.value.isdigit() or int(found.value) <= until_ms:
                await tree.commit(Put(path, found.value, found.version))
        except (NoSuchKeyError, VersionConflictError):
            pass  # a new plan of the writer has ended it
